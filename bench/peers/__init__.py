"""Other systems, each in one short file and in an environment of its own: `python -m bench.peers.install`."""
