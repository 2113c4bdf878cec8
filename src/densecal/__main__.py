"""`python -m densecal`, and where the command starts: its version is printed without importing the command line."""

from __future__ import annotations

import sys

from densecal import __version__


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        print(f"densecal {__version__}")
        return
    from densecal.cli import main as run

    run()


if __name__ == "__main__":
    main()
