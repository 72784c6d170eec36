"""The trio code on the traffic path: legs, relays, the recorder, the proxy."""
