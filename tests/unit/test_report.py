"""`wsllama compare` and `wsllama report` on records of hosts that this computer never saw: exit codes, sentences, text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_cli import wsllama
from wsllama.commands.bench import lines
from wsllama.commands.report import html
from wsllama.domain import report

DATA = Path(__file__).parents[1] / "data" / "records"
BEFORE, AFTER = DATA / "laptop-4.json", DATA / "laptop-5.json"


def loaded(*names: str) -> list[dict[str, Any]]:
    return [{**json.loads((DATA / f"{name}.json").read_text()), "id": name} for name in names]


# compare


def test_two_records_side_by_side() -> None:
    p = wsllama("compare", BEFORE, AFTER, "--gate", "5", "--json")
    assert p.returncode == 0, p.stderr
    document = json.loads(p.stdout)
    assert document["worse"] == []
    assert {"what": "llama.cpp commit", "first": "7be09c1f5e1d0a6d9b7a4f0a3f5b2c91d0e4a8f7",
            "second": "0c1e57098bba43ac29e6e3b677cdceebdd22334f"} in document["conditions"]  # fmt: skip
    figures = {row["what"]: row for row in document["figures"]}
    assert figures["answer: generation speed"]["ratio"] == pytest.approx(31.8 / 24.6, abs=1e-4)
    assert (figures["VRAM, peak"]["first"], figures["VRAM, peak"]["second"]) == (4802 << 20, 7290 << 20)
    assert figures["mean power"]["ratio"] == "not reported"


def test_what_got_worse_ends_with_exit_code_3() -> None:
    p = wsllama("compare", AFTER, BEFORE, "--gate", "5")
    assert p.returncode == 3
    assert "worse: answer: generation speed is 23 % worse, 31.8 to 24.6 tokens/s; 5 % is allowed" in p.stderr
    assert "answer: generation speed (tokens/s)" in p.stdout
    assert wsllama("compare", AFTER, BEFORE, "--gate", "40").returncode == 0
    assert wsllama("compare", AFTER, BEFORE).returncode == 0


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    other = json.loads(AFTER.read_text())
    other["model"].update(file="other.gguf", sha256="0" * 64)
    (tmp_path / "other.json").write_text(json.dumps(other))
    p = wsllama("compare", BEFORE, tmp_path / "other.json")
    assert p.returncode == 2
    assert p.stderr.splitlines()[0] == ("refused: they are of different models: Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf and other.gguf")
    p = wsllama("compare", BEFORE, tmp_path / "other.json", "--force")
    assert (p.returncode, p.stderr.splitlines()) == (
        0,
        ["mind: they are of different models: Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf and other.gguf"],
    )
    del other["gpus"][0]["driver"]
    (tmp_path / "other.json").write_text(json.dumps(other))
    p = wsllama("compare", BEFORE, tmp_path / "other.json")
    assert (p.returncode, p.stderr.splitlines()) == (
        2,
        [f"refused: {tmp_path}/other.json: record other is incomplete: gpus.0.driver is missing"],
    )


# bench: options that are wrong


def test_all_wrong_options_are_told_at_once() -> None:
    p = wsllama("bench", "nowhere", "--scenario", "poem", "--threads-sweep", "4,0", "--budgets", "many", "--no-restart")
    assert (p.returncode, p.stderr.splitlines()) == (
        2,
        [
            "refused: --threads-sweep '4,0': give numbers with commas between them, as in 4,8",
            "refused: --budgets 'many': give numbers with commas between them, as in 4,8",
            "refused: there is no scenario 'poem': reasoning, answer, conversation, short",
            "refused: --threads-sweep stops the service, which --no-restart forbids: leave one of them out",
        ],
    )


def test_a_record_as_the_guide_writes_it() -> None:
    said = "\n".join(lines(loaded("desk-2")[0]))
    for line in (
        "  GPU         NVIDIA GeForce RTX 4090, 24.0 GiB, driver 596.02",
        "  llama.cpp   0c1e57098, build c04be94122d9e5a1, release 2",
        "  model       Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf, sha256 4c1b4c1b4c1b4c1b",
        "  context     65536; KV cache q8_0 and q8_0; layers on the GPU by the log: 41 of 41",
        "  VRAM        22.47 GiB after loading, 22.58 GiB at most",
        "  power       288 W on average, 342 W at most",
        "    generation speed           164.40 tokens/s  162.76 to 166.04",
        "    without CUDA graphs     151.20 tokens/s  148.18 to 152.71",
        "  thinking of 1024 tokens: 8 of 8 answered, 8 right",
        "  plan, VRAM: weights 20.10 GiB, measured 20.10 GiB, +0.0 %",
    ):
        assert line in said


# report


def test_the_newest_record_of_a_release_counts() -> None:
    old, new = loaded("laptop-5", "laptop-5")
    old.update(taken="2026-11-01T00:00:00Z", label="old")
    (chart,) = [chart for chart in report.view([new, old])["speed"] if chart["scenario"] == "answer"]
    assert [row["label"] for row in chart["rows"]] == [""]
    old["release"] = "3"
    (chart,) = [chart for chart in report.view([new, old])["speed"] if chart["scenario"] == "answer"]
    assert [(row["release"], row["label"]) for row in chart["rows"]] == [("3", "old"), ("5", "")]
    assert [row["release"] for row in report.view([new, old])["fleet"]] == ["5"]


def test_the_plan_stands_beside_the_log() -> None:
    """Planned were 4960 MiB of weights, the log shows 4963.1; the driver shows 7177 MiB with the server and 912 without."""
    rows = {(row["where"], row["what"]): row for row in report.planned(loaded("laptop-5")[0])}
    assert rows["VRAM", "weights"]["difference"] == "+0.1 %"
    assert rows["VRAM", "compute"] == {
        "where": "VRAM", "what": "compute", "planned": "512.0 MiB", "measured": "501.0 MiB", "difference": "-2.1 %",
    }  # fmt: skip
    assert rows["RAM", "weights"]["planned"] == "15.25 GiB"
    assert rows["VRAM", "all, by nvidia-smi"] == {
        "where": "VRAM", "what": "all, by nvidia-smi", "planned": "6.03 GiB", "measured": "6.12 GiB", "difference": "+1.5 %",
    }  # fmt: skip
    assert report.planned(loaded("server-1")[0]) == []


def test_experts_in_ram_are_told_beside_the_layers() -> None:
    """llama.cpp's log says 41 of 41 layers also when the experts of most of them stay in RAM."""
    (of,) = loaded("laptop-5")
    assert report.fleet_row(of)["layers on GPU"] == "41 of 41"
    of["server"]["n_cpu_moe"] = 22
    assert report.fleet_row(of)["layers on GPU"] == "41 of 41, experts of 22 in RAM"


def test_memory_that_is_not_reported_is_not_drawn() -> None:
    (of,) = loaded("laptop-5")
    of["memory"]["idle"]["vram_bytes"] = of["memory"]["peak"]["vram_bytes"] = "not reported"
    column = report.columns(of)[0]
    assert [segment["what"] for segment in column["segments"]] == ["weights", "KV cache", "state", "compute", "free"]
    assert (column["peak"], column["peak_y"]) == ("not reported", None)


def test_more_than_there_is_still_fits_the_drawing() -> None:
    """Windows lends a GPU memory of the host: what is held may be more than the card has."""
    (of,) = loaded("laptop-5")
    of["memory"]["peak"]["vram_bytes"] = of["memory"]["idle"]["vram_bytes"] = 9000 << 20
    column = report.columns(of)[0]
    assert sum(segment["height"] for segment in column["segments"]) == pytest.approx(report.STACK_HEIGHT, abs=0.1)
    assert column["peak_y"] == 0


def test_markdown_has_the_same_and_breaks_nowhere() -> None:
    records = loaded("desk-2", "laptop-4", "laptop-5", "server-1")
    records[0]["host"]["name"] = "a|b\n# <b>*x*"
    text = report.markdown(report.view(records))
    assert "| a\\|b # &lt;b&gt;\\*x\\* | NVIDIA GeForce RTX 4090 |" in text
    assert "| laptop | 5 | 0c1e57098 | 31.8 | 30.8 to 32.8 | 489 | 0.91 | 2026-11-30 20:01 UTC |  |" in text
    assert "| VRAM | compute | 512.0 MiB | 501.0 MiB | -2.1 % |" in text
    tables = [line for line in text.split("\n") if line.startswith("|")]
    assert len(tables) > 30
    assert all(line.endswith("|") for line in tables)
    p = wsllama("report", DATA, "--markdown", "-o", "-")
    assert (p.returncode, p.stdout.splitlines()[2]) == (0, "4 records of 3 hosts, the newest of 2026-11-30 20:03 UTC.")


def test_every_value_on_the_page_is_escaped() -> None:
    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hostile(one) for key, one in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        return f"<i>{value}" if isinstance(value, str) and value != "not reported" else value

    records = [
        {**hostile(of), "plan": of["plan"], "buffers": of["buffers"], "disturbed": "<i>x"}
        for of in loaded("desk-2", "laptop-4", "laptop-5", "server-1")
    ]
    text = html(report.view(records))
    assert "<i>" not in text
    assert text.count("&lt;i&gt;") > 40
    assert "http" not in text.replace('lang="en"', "")  # nothing is loaded from anywhere


def test_nothing_to_report_is_refused(tmp_path: Path) -> None:
    p = wsllama("report", "--records", tmp_path, "-o", tmp_path / "page.html")
    assert (p.returncode, p.stderr) == (
        2,
        f"refused: there is no record in {tmp_path}: `wsllama bench` takes one, or name a file or folder\n",
    )
    assert not list(tmp_path.iterdir())


def test_json_has_all_that_the_page_shows(tmp_path: Path) -> None:
    p = wsllama("report", DATA, "-o", tmp_path / "page.html", "--json")
    document = json.loads(p.stdout)
    assert (p.returncode, document["file"], document["records"], document["hosts"]) == (0, str(tmp_path / "page.html"), 4, 3)
    assert [row["host"] for row in document["fleet"]] == ["desk-1", "laptop", "server-1"]
    assert (document["failed"], document["unreachable"]) == ({}, {})
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    p = wsllama("report", DATA, "-o", "-", "--json")
    assert p.returncode == 2
    assert json.loads(p.stdout)["errors"] == ["-o - puts the page on stdout, and --json its document: leave one of them out"]


def test_a_host_that_is_away_is_named_where_nothing_is_here(tmp_path: Path) -> None:
    away = '"ssh_hostname": "127.0.0.1", "ssh_port": 9, "platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}'
    (tmp_path / "inventory").write_text(f'desks = [("desk-1", {{{away}}})]\n')
    words = ("report", "--inventory", tmp_path / "inventory", "--records", tmp_path / "records", "-o", tmp_path / "page.html")
    p = wsllama(*words)
    assert p.returncode == 4
    assert "nothing was written: there is no record in" in p.stderr
    assert "desk-1 can't be reached: " in p.stderr
    p = wsllama(*words, "--json")
    assert (p.returncode, list(json.loads(p.stdout)["unreachable"])) == (4, ["desk-1"])
