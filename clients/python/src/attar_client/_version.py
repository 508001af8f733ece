"""How this package names itself to the daemon."""

VERSION = "0.1.0"
CLIENT = {"name": "attar-client (Python)", "version": VERSION}
