# SPDX-License-Identifier: Apache-2.0
"""`penstock completion bash|zsh|fish`: a script that completes commands, options, policies and the words they take.

Why static: the shell looks words up in the script, so no Python starts at a key press. It is made from the parser, so
no command or option is missing. Where: `main`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Words: TypeAlias = "list[tuple[str, str]]"  # each with what it means

_DESCRIPTION: Final = """\
Print a script that completes this version's commands, options, policies and the words that they take.

  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
  penstock completion zsh  > ~/.zfunc/_penstock      # with fpath+=~/.zfunc before compinit in ~/.zshrc
  penstock completion fish > ~/.config/fish/completions/penstock.fish
"""

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
# The rules are those of bash's, without its divided words. `path` would be the shell's own.
_ZSH: Final = """\
#compdef penstock
# Completions of penstock for zsh.
_penstock_words() {
    case "$1" in
%s
    *) reply=(); return 1 ;;
    esac
}
_penstock() {
    local -a reply
    local cur="${words[CURRENT]}" at=penstock option='' word
    integer place=0 i
    for ((i = 2; i < CURRENT; i++)); do
        word="${(Q)words[i]}"
        if [[ -n $option ]]; then option=''
        elif [[ $word == --*=* ]]; then continue
        elif [[ $word == -* ]]; then
            if _penstock_words "$at $word"; then option="$word"; fi
        elif ((place == 0)) && _penstock_words "$at $word"; then at="$at $word"
        else ((place += 1))
        fi
    done
    if [[ -n $option ]]; then word="$at $option"
    elif [[ $cur == --*=* ]]; then
        word="$at ${cur%%%%=*}"
        compset -P '*='
    elif [[ $cur == -* ]]; then word="$at"
    else word="$at $place"
    fi
    _penstock_words "$word"
    if (($#reply)); then _describe penstock reply
    else _files
    fi
}
if [[ $funcstack[1] == _penstock ]]; then _penstock "$@"
else compdef _penstock penstock
fi
"""
_FISH: Final = """\
# Completions of penstock for fish.
function __penstock_words
    switch $argv[1]
%s
        case '*'
            return 1
    end
end
function __penstock_complete
    set -l cur (commandline -ct)
    set -l at penstock
    set -l option ''
    set -l place 0
    set -l before (commandline -opc)
    for word in $before[2..-1]
        if test -n "$option"
            set option ''
        else if string match -q -- '--*=*' $word
            continue
        else if string match -q -- '-*' $word
            if __penstock_words "$at $word" >/dev/null
                set option $word
            end
        else if test $place -eq 0; and __penstock_words "$at $word" >/dev/null
            set at "$at $word"
        else
            set place (math $place + 1)
        end
    end
    set -l key "$at $place"
    set -l head ''
    if test -n "$option"
        set key "$at $option"
    else if string match -q -- '--*=*' $cur
        set key "$at "(string split -m 1 = -- $cur)[1]
        set head (string split -m 1 = -- $cur)[1]=
    else if string match -q -- '-*' $cur
        set key $at
    end
    set -l found (__penstock_words $key)
    if test (count $found) -gt 0
        printf "$head%%s\\n" $found
    else
        __fish_complete_path (string replace -- "$head" '' $cur)
    end
end
complete -c penstock -f -k -a '(__penstock_complete)'
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=_run)
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SHELLS), help=", ".join(SHELLS))


def _run(arguments: argparse.Namespace) -> int:
    from penstock.cli.main import build_parser

    sys.stdout.write(SHELLS[arguments.shell](build_parser()))
    return Exit.OK


def bash(parser: argparse.ArgumentParser) -> str:
    """Return the script for a parser and all its commands."""
    tables = (
        f"    '{key}') echo '{' '.join(word for word, _ in words)}' ;;" for key, words in _tables("penstock", parser)
    )
    return _BASH % "\n".join(tables)


def zsh(parser: argparse.ArgumentParser) -> str:
    """Return the same for zsh, with what each word means."""
    lines = []
    for keys, words in _grouped(parser):
        described = " ".join(_of_zsh(word.replace(":", "\\:") + (f":{text}" if text else "")) for word, text in words)
        lines.append(f"    {'|'.join(map(_of_zsh, keys))}) reply=({described}) ;;")
    return _ZSH % "\n".join(lines)


def fish(parser: argparse.ArgumentParser) -> str:
    """Return the same for fish, with what each word means."""
    lines = []
    for keys, words in _grouped(parser):
        lines.append(f"        case {' '.join(map(_of_fish, keys))}")
        described = (_of_fish(f"{word}\t{text}" if text else word) for word, text in words)
        lines.append(f"            printf '%s\\n' {' '.join(described)}" if words else "            true")
    return _FISH % "\n".join(lines)


def _of_zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _of_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _grouped(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], Words]]:
    """Yield the tables, those with the same words once: most options are those of many commands."""
    keys: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for key, words in _tables("penstock", parser):
        keys.setdefault(tuple(words), []).append(key)
    yield from ((same, [*words]) for words, same in keys.items())


def _tables(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, Words]]:
    """Yield what may follow: the options of each path, the values of each option that has one, and of each place."""
    place = 0
    arguments = parser._actions  # noqa: SLF001 - argparse has no other way to ask
    yield path, [(option, _text(action)) for action in arguments for option in action.option_strings]
    for action in arguments:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            texts = {one.dest: _text(one) for one in action._choices_actions}  # noqa: SLF001 - as above
            yield f"{path} {place}", [(name, texts.get(name, "")) for name in action.choices]
            for name, command in action.choices.items():
                yield from _tables(f"{path} {name}", command)
        elif action.option_strings:
            if action.nargs != 0:
                yield from ((f"{path} {option}", _values(action, parser)) for option in action.option_strings)
        else:
            yield f"{path} {place}", _values(action, parser)
            place += 1


def _values(action: argparse.Action, parser: argparse.ArgumentParser) -> Words:
    """Return the words that an argument can be; none if it can be anything, and the shell then completes files."""
    if action.dest == "policy":
        return [(policy, "") for policy in parser.get_default("action").policies]
    return [(str(choice), "") for choice in action.choices or ()]


def _text(action: argparse.Action) -> str:
    """Return what an option or command does, on one line."""
    return " ".join((action.help or "").replace("%%", "%").split())


SHELLS: Final[dict[str, Callable[[argparse.ArgumentParser], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
