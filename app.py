"""Entry point of the studio: read the flags, load the model, open the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the studio until it is interrupted; 2 when it cannot start because of how it was called,
    130 when it was interrupted before it was up."""
    from webui.flags import read_options

    options = read_options(arguments)
    import logging

    from inference.logs import setup_logging

    setup_logging(options.log_json)
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    from inference.types import SynthesisError
    from webui.serve import serve

    try:
        serve(options)
    except SynthesisError as error:
        print(error.message, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while the model was loading; the page itself ends on it quietly
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
