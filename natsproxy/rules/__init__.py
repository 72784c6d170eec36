"""Rules: what is to happen to which frames, decided per frame and reproducibly; never a socket, never a
clock."""
