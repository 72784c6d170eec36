"""The permissions that recorded traffic needs: the smallest block for each client, with its evidence.

`uses.py` reads captures and tells who used which subject.  `marks.py` says which tokens of a subject may
become `*`, `templates.py` generalises by that, `needs.py` makes the lines of a block, `choices.py` lists the
rare calls that a recording cannot know, `formats.py` writes blocks.
`rows.py` has the rows of the table `permissions`, which Spark makes and `needs.py` reads, too.
`proving.py` tries blocks on a real server, `proof.py` has its verdicts.  `holders.py` reads the permissions
of a configuration, `comparison.py` compares them with what was used.

Read `uses.py` first, then `marks.py`.
"""
