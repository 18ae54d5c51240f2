"""Reads `Options` from the command line and the environment, and writes their table into the README."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from webui.options import (
    OTHER_VARIABLES,
    PREFIX,
    Flag,
    Options,
    flag_name,
    flags,
    switch,
    variable_name,
)

README = Path(__file__).resolve().parents[1] / "README.md"
_HELP_WIDTH = 118
_MARKS = ("<!-- help of app.py -->", "<!-- end of the help -->")


class _Parser(argparse.ArgumentParser):
    """Tells which flag was meant when one is misspelt."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")

    def print_usage(self, file: Any = None) -> None:
        print(f"usage: {self.prog} [flags]; {self.prog} --help lists them", file=file or sys.stdout)


def build_parser() -> argparse.ArgumentParser:
    """The flags; each parsed value is None unless it was given."""
    parser = _Parser(
        prog="app.py",
        usage="app.py [flags]",
        description="CosyVoice2 voice-cloning studio.",
        epilog=f"Each flag is also a variable of the environment: --server-port is {variable_name('server_port')}, "
        "a switch is on with 1. A flag goes before a variable.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=28, width=_HELP_WIDTH),
    )
    for field, flag in flags().items():
        _add(parser, field, flag)
    return parser


def _add(parser: argparse.ArgumentParser, field: str, flag: Flag) -> None:
    settings: dict[str, Any] = {"dest": field, "default": None, "help": flag.help + _default_of(field, flag)}
    if flag.switch:
        on = _default(field) is True
        parser.add_argument(given_name(field), action="store_false" if on else "store_true", **settings)
        return
    if flag.choices:
        settings["metavar"] = "|".join(flag.choices)
    else:
        settings["metavar"] = flag.metavar or "TEXT"
    if flag.several:
        settings |= {"nargs": "+", "action": "extend"}
    parser.add_argument(given_name(field), type=_typed(flag), **settings)


def _default_of(field: str, flag: Flag) -> str:
    default = _default(field)
    shown = flag.shown_default
    if shown is None:
        shown = "" if flag.switch or default in ("", (), None) else str(default)
    return f" (default: {shown})" if shown else ""


def _default(field: str) -> Any:
    return {entry.name: entry.default for entry in dataclasses.fields(Options)}[field]


def given_name(field: str) -> str:
    """The flag as it is typed; a switch that is on by itself is turned off with `--no-…`."""
    name = flag_name(field)
    return name.replace("--", "--no-", 1) if flags()[field].switch and _default(field) is True else name


def _typed(flag: Flag) -> Any:
    def parse(text: str) -> Any:
        if flag.choices and text not in flag.choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(flag.choices)}")
        try:
            return flag.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def read_options(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> Options:
    """The settings of this run. Ends the program with status 2 and one sentence when they cannot be used."""
    parser = build_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant_flag(unknown)}")
    values = _from_environment(parser, os.environ if environment is None else environment)
    values |= {name: value for name, value in vars(given).items() if value is not None}
    whole: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return Options(**whole)


def _meant_flag(unknown: Sequence[str]) -> str:
    known = [given_name(field) for field in flags()]
    for word in unknown:
        if word.startswith("-"):
            near = difflib.get_close_matches("--" + word.lstrip("-").split("=")[0], known, 1)
            if near:
                return f"; did you mean {near[0]}?"
    return ""


def _from_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> dict[str, Any]:
    known = {variable_name(field): (field, flag) for field, flag in flags().items()}
    others = {PREFIX + name for name in OTHER_VARIABLES}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in others:
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
            if near:  # what was meant as a setting must not be ignored: it may be the password
                parser.error(f"unknown variable {name}; did you mean {near[0]}?")
            print(f"The variable {name} means nothing to the studio.", file=sys.stderr)
            continue
        field, flag = known[name]
        try:
            values[field] = _value(flag, text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            parser.error(f"variable {name}: {error}")
    return {name: value for name, value in values.items() if value is not None}


def _value(flag: Flag, text: str) -> Any:
    """What a variable says; None for an empty one, as `COSYVOICE_AUTH= ./run.sh` means none."""
    if flag.switch:
        return switch(text)
    if not text.strip():
        return None
    parse = _typed(flag)
    return tuple(parse(word) for word in text.split()) if flag.several else parse(text)


# ------------------------------------------------------------------------------------------------------- README
def help_block() -> str:
    """The part of the README between the marks, marks included."""
    return f"{_MARKS[0]}\n\n```text\n{build_parser().format_help().rstrip()}\n```\n\n{_MARKS[1]}"


def with_help(readme: str) -> str:
    """The README with today's flags. Raises ValueError if it lacks the marks."""
    pattern = re.compile(re.escape(_MARKS[0]) + ".*?" + re.escape(_MARKS[1]), re.DOTALL)
    if not pattern.search(readme):
        raise ValueError(f"the README has no part from {_MARKS[0]} to {_MARKS[1]}")
    return pattern.sub(lambda _: help_block(), readme)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        read_options(sys.argv[2:])
        raise SystemExit(0)
    README.write_text(with_help(README.read_text(encoding="utf-8")), encoding="utf-8")
