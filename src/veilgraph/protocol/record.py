"""What a job says of itself to people: what it is for, how long its files are kept, who answers for what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from veilgraph.core.settings import Settings

MOST_CHARACTERS: Final = 2000


def _readable(text: str) -> str:
    if any(not (character.isprintable() or character == "\n") for character in text):
        raise ValueError("has control characters, which change what a terminal shows; take them out")
    if not text.strip():
        raise ValueError("is empty; say something or leave it out")
    return text


Words = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_readable)]


class RecordSettings(Settings):
    """Free text of a job, which no party computes with and every party agrees to."""

    purpose: Words | None = Field(None, description="what the model and its predictions are for, and for what not")
    retention: Words | None = Field(None, description="how long runs, models and predictions are kept, and who deletes")
    roles: Words | None = Field(None, description="who is controller, processor or contact of which party")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not any(self.told()):
            raise ValueError("record says nothing; give purpose, retention or roles, or leave record out")
        return self

    def told(self) -> Iterator[tuple[str, str]]:
        """(Name, text) of what is said."""
        yield from ((name, text) for name, text in self if text is not None)
