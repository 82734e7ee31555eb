"""What the models of the settings are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _sha256(value: str) -> str:
    if len(value) != 64 or set(value) - set("0123456789abcdefABCDEF"):
        raise ValueError("a sha256 is 64 hexadecimal digits")
    return value.lower()


def _printable(value: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("control characters are not allowed")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value):  # how Python reads bytes that are no UTF-8; they can't be sent on
        raise ValueError("it is not UTF-8: give another name")
    return value


Sha256 = Annotated[str, AfterValidator(_sha256)]
Text = Annotated[str, AfterValidator(_printable), Field(min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Capability = Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]
Architecture = Annotated[str, Field(pattern=r"^\d{2,3}[af]?(-real|-virtual)?$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:=+/-]+$")]
FromList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)


class Topic(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
