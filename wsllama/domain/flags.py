"""llama-server's options: what the --help of one build lists, and words said so that this build takes them. Pure.

Settings keep one spelling, the pin's; llama.cpp renames its options between releases and ends at the first one that it doesn't
know. Rules: common/arg.cpp at the pin, `common_arg::to_string` for the form of --help, `common_params_parse_ex` for the words:
underscores count as dashes after `--`, nothing is abbreviated, and a value is always a word of its own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

TOOLS_REASON = "whoever reaches the port could act on this host; server.allow_tools allows it"
_TOOLS = re.compile(r"-ag|--(tools|agent|mcp|ui-mcp|webui-mcp)(-.*)?")

# Spellings of one option in different releases, the pin's first.
_SAME = (
    ("--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"),
    ("--cache-ram", "-cram"),
    ("--kv-unified", "-kvu"),
    ("--log-verbosity", "-lv", "--verbosity"),
    ("--gpu-layers", "-ngl", "--n-gpu-layers"),
    ("--predict", "-n", "--n-predict"),
    ("--ui", "--webui"),
    ("--no-ui", "--no-webui"),
    ("--ui-config", "--webui-config"),
    ("--ui-config-file", "--webui-config-file"),
    ("--embedding", "--embeddings"),
    ("--rerank", "--reranking"),
    ("--spec-draft-model", "-md", "--model-draft"),
    ("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"),
    ("--spec-draft-n-min", "--draft-min", "--draft-n-min"),
    ("--spec-draft-p-min", "--draft-p-min"),
    ("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
    ("--spec-draft-n-cpu-moe", "-ncmoed", "--n-cpu-moe-draft"),
    ("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"),
    ("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"),
    ("--spec-draft-device", "-devd", "--device-draft"),
)
# Options that bound or switch something that a build without them doesn't have.
_NEEDLESS = {
    "--ctx-checkpoints": "it keeps no context checkpoints",
    "--cache-ram": "it keeps no cache of prompts in memory",
    "--kv-unified": "its slots share one cache anyway",
    "--offline": "it downloads nothing for a model that is given as a file",
}
_LOAD_MODE = ("--load-mode", "-lm")
_LEGACY_LOADING = {
    "--no-mmap": "no-mmap",
    "--mmap": "mmap",
    "--mlock": "mlock",
    "-dio": "dio",
    "--direct-io": "dio",
    "-ndio": "",
    "--no-direct-io": "",
}
# What the modes are called in a build without --load-mode, which maps the file unless told otherwise.
_LOADING = {
    "auto": (),
    "mmap": (),
    "none": ("--no-mmap",),
    "mlock": ("--no-mmap", "--mlock"),
    "mmap+mlock": ("--mlock",),
    "dio": ("--direct-io",),
}
_FLASH = ("--flash-attn", "-fa")
_V_CACHE = ("--cache-type-v", "-ctv")
_SWITCH = {"1": "on", "true": "on", "enabled": "on", "0": "off", "false": "off", "disabled": "off", "-1": "auto"}


class Option(NamedTuple):
    """One option of a --help: all its spellings, also those that turn it off."""

    names: tuple[str, ...]
    values: int  # words that follow it
    allowed: tuple[str, ...] = ()  # empty: not listed
    many: bool = False  # several of the allowed values, with commas
    env: str | None = None
    text: str = ""  # the explanation, in one line

    @property
    def removed(self) -> bool:
        """Listed only to say that it went."""
        return "argument has been removed" in self.text

    @property
    def off_by_default(self) -> bool:
        return bool(re.search(r"\(default: (disabled|false)\b", self.text))


class Help(NamedTuple):
    options: tuple[Option, ...]

    def find(self, flag: str) -> Option | None:
        """The option with this spelling that the build takes, or None."""
        return next((o for o in self.options if flag in o.names and not o.removed), None)

    @property
    def names(self) -> list[str]:
        return [name for o in self.options if not o.removed for name in o.names]


class Resolved(NamedTuple):
    words: list[str]  # for the build; to be used only when there are no problems
    problems: list[str]  # one sentence each
    notes: list[str]  # what was translated or left out, one sentence each


class _Given(NamedTuple):
    flag: str
    values: tuple[str, ...]


def tool_flag(word: str) -> str:
    """The option that `word` is, if that option gives a model files or a shell, or opens a way to other servers; else ''."""
    flag = _flag(word)
    return flag if _TOOLS.fullmatch(flag) else ""


def parse_help(text: str) -> Help:
    """Read what `llama-server --help` printed. What isn't an option's line or its explanation is passed over."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if re.match(r"--?[A-Za-z]", line):
            found.append((line, []))
        elif found and line.startswith("    "):
            found[-1][1].append(line.strip())
        elif not line.strip().startswith("("):
            found.append(("", []))  # a heading ends the explanation before it
    return Help(tuple(_option(head, lines) for head, lines in found if head))


def _option(head: str, lines: list[str]) -> Option:
    names = []
    rest = head
    while m := re.match(r"(--?[A-Za-z][\w.-]*)(,\s*|\s|$)", rest):
        names.append(m[1])
        rest = rest[m.end() :]
        if not m[2].startswith(","):
            break
    # At least three blanks stand before an explanation, and none around a hint.
    hint, _, text = ("", "", rest.strip()) if rest.startswith(" ") else rest.partition("  ")
    lines = [text.strip(), *lines]
    allowed, many = _allowed(hint.strip(), lines)
    joined = " ".join(line for line in lines if line)
    env = re.search(r"\(env: (\w+)\)", joined)
    values = 2 if re.fullmatch(r"[A-Z_]+ [A-Z_]+", hint.strip()) else int(bool(hint.strip()))
    return Option(tuple(names), values, allowed, many, env[1] if env else None, joined)


def _allowed(hint: str, lines: list[str]) -> tuple[tuple[str, ...], bool]:
    """The values that are listed, and whether several may be given."""
    value = r"[a-z0-9][\w+-]*"
    if m := re.fullmatch(rf"[\[{{<]({value}(?:[|,]{value})+)[\]}}>]", hint):
        return tuple(re.split(r"[|,]", m[1])), False
    if re.fullmatch(rf"{value}(,{value})+", hint):
        return tuple(hint.split(",")), True
    joined = " ".join(lines)
    if m := re.search(rf"allowed values: ({value}(?:, {value})*)", joined):
        return tuple(m[1].split(", ")), False
    if m := re.search(r"only one of: (-?\w+) .*?, or (-?\w+) ", joined):
        return (m[1], m[2]), False
    listed = [m[1] for line in lines if (m := re.match(rf"- ({value})(?: \(default\))?:", line))]
    if listed and hint != "N":
        default = re.search(rf"\(default: ({value})\)", joined)
        return tuple(dict.fromkeys([*listed, *([default[1]] if default else [])])), False
    return (), False


def resolve(words: Sequence[str], help: Help, allow_tools: bool = False) -> Resolved:
    """Say `words`, which are llama-server's arguments in the spelling of any release, in the spelling of one build.

    help: of that build. allow_tools: let options pass that give a model files or a shell.
    Renamed options are translated; what the build does anyway is left out; whatever else it doesn't take is a problem.
    """
    out = Resolved([], [], [])
    given = _loading(_read(words, help, allow_tools, out), help, out)
    for item in given:
        if option := help.find(item.flag):
            out.words.extend(_known(item, option, given, out))
        else:
            out.words.extend(_translated(item, help, out))
    return out


def _flag(word: str) -> str:
    if not _is_flag(word):
        return ""
    name = word.split("=", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def _read(words: Sequence[str], help: Help, allow_tools: bool, out: Resolved) -> list[_Given]:
    """Each option with its values."""
    given, i = [], 0
    while i < len(words):
        word, i = words[i], i + 1
        flag = _flag(word)
        if not flag:
            out.problems.append(f"{word!r} stands where llama-server expects an option: give it after the option it belongs to")
            continue
        inline = word.split("=", 1)[1:]
        count = 0 if inline else _count(flag, words[i : i + 2], help)
        values = (*inline, *words[i : i + count])
        i += count
        if tool_flag(flag) and not allow_tools:
            out.problems.append(f"{flag} is refused: {TOOLS_REASON}")
        else:
            given.append(_Given(flag, values))
    return given


def _count(flag: str, following: Sequence[str], help: Help) -> int:
    """How many of the following words are values of the option."""
    bare = not following or _is_flag(following[0])
    option = help.find(flag)
    if flag in _FLASH:  # took no value until autumn 2025
        return int(not bare and _SWITCH.get(following[0], following[0]) in ("on", "off", "auto"))
    if option:
        return min(option.values, len(following))
    return 0 if flag in _LEGACY_LOADING else int(not bare)


def _known(item: _Given, option: Option, given: list[_Given], out: Resolved) -> list[str]:
    flag, values = item
    if flag in _FLASH:
        return _flash_attention(item, option, given, out)
    if len(values) != option.values:
        takes = f"takes {option.values or 'no'} value{'s' if option.values > 1 else ''}"
        out.problems.append(f"{flag} {takes} in this build of llama-server, but {len(values) or 'none'} was given")
        return []
    return [flag, *(_value(flag, value, option, out) for value in values)]


def _value(flag: str, value: str, option: Option, out: Resolved) -> str:
    if {"on", "off"} <= set(option.allowed):
        value = _SWITCH.get(value, value)
    for part in value.split(",") if option.many else [value]:
        if option.allowed and part not in option.allowed:
            near = _nearest(part, option.allowed)
            hint = f"did you mean {near}? It takes" if near else "it takes"
            out.problems.append(f"{flag} doesn't take {part} in this build of llama-server: {hint} {', '.join(option.allowed)}")
    return value


def _flash_attention(item: _Given, option: Option, given: list[_Given], out: Resolved) -> list[str]:
    """`-fa` alone was a switch, off by default, before it took on, off or auto."""
    flag, values = item
    if option.values:
        if not values:
            out.notes.append(f"{flag} takes a value in this build, so it is given as {flag} on")
        return [flag, _value(flag, values[0] if values else "on", option, out)]
    wanted = _SWITCH.get(values[0], values[0]) if values else "on"
    if wanted == "auto":  # a quantised V cache doesn't start without it (src/llama-context.cpp:465-468 at the pin)
        plain = ("f32", "f16", "bf16")
        wanted = "on" if any(g.flag in _V_CACHE and g.values and g.values[0] not in plain for g in given) else "off"
        out.notes.append(f"{flag} is only a switch in this build, so auto is given as {wanted}")
    return [flag] if wanted == "on" else []


def _loading(given: list[_Given], help: Help, out: Resolved) -> list[_Given]:
    """One --load-mode instead of the switches before it, or those switches for a build that doesn't have it."""
    new = next((name for name in _LOAD_MODE if help.find(name)), None)
    legacy = [g.flag for g in given if g.flag in _LEGACY_LOADING and not help.find(g.flag)]
    if new is None:
        return [part for g in given for part in (_older_loading(g, help, out) if g.flag in _LOAD_MODE else [g])]
    if not legacy:
        return given
    asked = {_LEGACY_LOADING[flag] for flag in legacy} - {""}
    mode = _mode(asked)
    said = {g.values[0] for g in given if g.flag in _LOAD_MODE and g.values} - {"auto"}
    if mode is None or (mode and said - {mode}):
        both = ", ".join(dict.fromkeys([*legacy, *(f"{new} {value}" for value in said)]))
        out.problems.append(f"{both} contradict each other: give one {new}")
        return [g for g in given if g.flag not in legacy]
    rest = [g for g in given if g.flag not in legacy and not (mode and g.flag in _LOAD_MODE)]
    out.notes.append(f"{' '.join(dict.fromkeys(legacy))} is {f'{new} {mode}' if mode else 'the default'} in this build")
    return [*rest, _Given(new, (mode,))] if mode else rest


def _mode(asked: set[str]) -> str | None:
    """The load mode that stands for older switches; '' for none of them, None for a contradiction."""
    if {"mmap", "no-mmap"} <= asked or ("dio" in asked and asked & {"mmap", "mlock"}):
        return None
    if "dio" in asked:
        return "dio"
    if "mlock" in asked:
        return "mmap+mlock" if "mmap" in asked else "mlock"
    return {"mmap": "mmap", "no-mmap": "none"}.get("".join(asked), "")


def _older_loading(item: _Given, help: Help, out: Resolved) -> list[_Given]:
    mode = item.values[0] if item.values else ""
    older = _LOADING.get(mode)
    if older is None or any(help.find(name) is None for name in older):
        known = [m for m, names in _LOADING.items() if all(help.find(name) for name in names)]
        what = " ".join([item.flag, *item.values])
        out.problems.append(f"this build of llama-server has nothing like {what}: it can do {', '.join(known)}")
        return []
    out.notes.append(f"{item.flag} {mode} is {' '.join(older) or 'the default'} in this build")
    return [_Given(name, ()) for name in older]


def _translated(item: _Given, help: Help, out: Resolved) -> list[str]:
    """The words for an option that the build doesn't have under this name."""
    flag, values = item
    same = next((names for names in _SAME if flag in names), (flag,))
    for name in same:
        if option := help.find(name):
            out.notes.append(f"{flag} is called {name} in this build")
            return _known(_Given(name, values), option, [], out)
    if reason := _needless(same[0], values, help):
        out.notes.append(f"{flag} is left out: this build doesn't have it, and {reason}")
        return []
    removed = next((o for o in help.options if flag in o.names), None)
    near = _nearest(flag, help.names)
    hint = f"did you mean {near}?" if near else "see its --help"
    if removed:
        hint = removed.text.split("removed. ", 1)[-1].split(" (env:", 1)[0]
    out.problems.append(f"{flag} is unknown to this build of llama-server: {hint}")
    return []


def _needless(flag: str, values: Sequence[str], help: Help) -> str:
    """Why the build does the same without this option; '' when it doesn't."""
    if flag in _NEEDLESS:
        return _NEEDLESS[flag]
    if flag == "--fit" and values == ("off",):
        return "it fits nothing to the memory by itself"
    if flag == "--reasoning-budget" and values == ("-1",):
        return "thinking has no limit in it"
    if values:
        return ""
    if flag.startswith("--no-"):
        positive = help.find("--" + flag[len("--no-") :])
        return "what it turns off is off by default" if positive and positive.off_by_default else ""
    return "what it turns on is on by default" if help.find("--no-" + flag.lstrip("-")) else ""


def _nearest(word: str, known: Iterable[str]) -> str:
    """What was most likely meant: a longer name that starts like it, else one that looks like it; '' for neither."""
    known = [name for name in known if name.startswith("--") == word.startswith("--")]
    longer = sorted((name for name in known if name.startswith(word + "-")), key=len)
    return next(iter([*longer, *difflib.get_close_matches(word, known, n=1, cutoff=0.5)]), "")
