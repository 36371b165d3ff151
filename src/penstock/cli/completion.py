# SPDX-License-Identifier: Apache-2.0
"""`penstock completion bash`: a script that completes commands, options, policies and the words that they take.

Why static: the shell looks words up in the script, so no Python starts at a key press. It is made from the parser, so
no command or option is missing. Where: `main`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from penstock.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTION: Final = "Print a script that completes this version's commands, options and names of policies."

# The path is the words of the command so far; the place counts the arguments behind it. Bash divides words at ":" and
# "=", so the rest of a URL is not one more argument.
_BASH: Final = """\
# Completions of penstock for bash.
_penstock_words() {
    case "$1" in
%s
    *) return 1 ;;
    esac
}
_penstock() {
    local cur="${COMP_WORDS[COMP_CWORD]}" path=penstock place=0 option='' glued='' word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [[ $word == = ]]; then continue
        elif [[ $word == : ]]; then glued=1
        elif [[ $glued ]]; then glued=''
        elif [[ $option ]]; then option=''
        elif [[ $word == -* ]]; then
            if _penstock_words "$path $word" >/dev/null; then option="$word"; fi
        elif ((place == 0)) && _penstock_words "$path $word" >/dev/null; then path="$path $word"
        else ((place += 1))
        fi
    done
    COMPREPLY=()
    if [[ $glued || $cur == : ]]; then return; fi
    if [[ $cur == = ]]; then cur=''; fi
    if [[ $option ]]; then word="$path $option"
    elif [[ $cur == -* ]]; then word="$path"
    else word="$path $place"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$(_penstock_words "$word")" -- "$cur")
}
complete -o default -F _penstock penstock
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument("shell", metavar="SHELL", choices=("bash",), help="bash")


def _run(_: argparse.Namespace) -> int:
    from penstock.cli.main import build_parser

    sys.stdout.write(bash(build_parser()))
    return Exit.OK


def bash(parser: argparse.ArgumentParser) -> str:
    """Return the script for a parser and all its commands."""
    return _BASH % "\n".join(f"    '{key}') echo '{' '.join(words)}' ;;" for key, words in _tables("penstock", parser))


def _tables(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield what may follow: the options of each path, the values of each option that has one, and of each place."""
    place = 0
    arguments = parser._actions  # noqa: SLF001 - argparse has no other way to ask
    yield path, [option for action in arguments for option in action.option_strings]
    for action in arguments:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            yield f"{path} {place}", list(action.choices)
            for name, command in action.choices.items():
                yield from _tables(f"{path} {name}", command)
        elif action.option_strings:
            if action.nargs != 0:
                yield from ((f"{path} {option}", _values(action, parser)) for option in action.option_strings)
        else:
            yield f"{path} {place}", _values(action, parser)
            place += 1


def _values(action: argparse.Action, parser: argparse.ArgumentParser) -> list[str]:
    """Return the words that an argument can be; none if it can be anything, and bash then completes files."""
    if action.dest == "policy":
        return list(parser.get_default("action").policies)
    return [str(choice) for choice in action.choices or ()]
