"""docs/settings.md says what the models say."""

from pathlib import Path

from wsllama import settings_doc

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_doc.page(), "run .venv/bin/python -m wsllama.settings_doc"


def test_page_names_values_as_they_are_written_in_an_inventory() -> None:
    rows = {line.split("`")[1]: line for line in settings_doc.page().splitlines() if line.startswith("| `")}
    assert rows["port"].startswith("| `port` | 1 to 65535 | `8080` |")
    assert rows["flash_attn"].startswith('| `flash_attn` | `"auto"`, `"on"`, `"off"` | `"auto"` |')
    assert rows["api_key"].startswith("| `api_key` | `True` or `False` | `False` |")
    assert rows["threads"].startswith("| `threads` | 1 to 1024 or `None` | `None` |")
