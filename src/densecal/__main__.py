"""`python -m densecal`, and where the command starts: its version is printed without importing the command line."""

from __future__ import annotations

import sys

from densecal import __version__


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        print(f"densecal {__version__}")
        return
    try:
        from densecal.cli import main as run

        run()
    except KeyboardInterrupt:  # before a command began, for example while the command line was imported
        print("densecal: stopped; the same command starts again", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
