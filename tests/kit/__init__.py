"""Tools that tests of several folders share: real servers, the proxy as a process, captures made by hand.

No tool here is a test.  `servers` and `process` start programs; `captures` and `traffic` write capture files;
`tee` and `disks` stand in for the network and the disk.  Read `servers` first.
"""
