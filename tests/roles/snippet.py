"""What a party runs in tests of launching: a few lines, without veilgraph inside, so that it starts quickly."""

import sys


def main(arguments: list[str]) -> int:
    """``python -c``: the lines, then what they find in ``sys.argv``."""
    text, *sys.argv[1:] = arguments
    exec(compile(text, "snippet", "exec"), {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
