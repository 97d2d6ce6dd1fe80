"""The steps of a guided recovery."""

from dataclasses import dataclass, field

from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, column
from sbpair.core.words import counted


@dataclass(frozen=True, slots=True)
class Step:
    """A command that was run."""

    number: int = field(metadata=column("Step", right=True))
    purpose: str = field(metadata=column("What for"))
    command: str = field(metadata=column("Command"))
    exit_name: str = field(metadata=column("Ended with"))
    exit: Exit = field(metadata=HIDDEN)
    drains: bool = field(default=False, metadata=HIDDEN)


@dataclass(frozen=True, slots=True)
class Incident:
    """The steps of one recovery, as `incident -o json` prints them."""

    pair: str
    steps: tuple[Step, ...]

    def closing(self, planned: int) -> str:
        """The last sentence. `planned`: how many steps there are."""
        run = f"{counted(len(self.steps), 'step')} of {planned} for {self.pair}"
        if len(self.steps) == planned:
            return f"{run}: done."
        last = self.steps[-1].exit_name if self.steps else "nothing"
        return f"{run}: ended after {last}. The others run alone as well: sbpair incident {self.pair} --script"
