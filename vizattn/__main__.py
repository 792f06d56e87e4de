"""``python -m vizattn`` is the command line."""

from vizattn.cli import main

main()
