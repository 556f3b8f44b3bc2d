"""Which state a new group goes on from, and which collectives are not made again. Pure: all ranks of a group compute the same from the
same claims.

Collectives are counted from the beginning of the run, by all ranks alike: the program makes the same ones in the same order on each. A
*commit* is the end of an iteration in which all optimizers have stepped. A rank keeps the results of the collectives since its last
commit. When a group breaks, some ranks may have the result of the newest collective and others may not: these get it from one that kept
it, and meet the others in the next collective. A new rank gets the state of a commit and makes its own part of every collective since,
but gets their results in the same way. So each collective is made once with all ranks, and nobody makes one again that others will not
make.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """What one rank holds when a group forms."""
    has_state: bool = False
    position: int = 0           # iterations that are committed
    at_commit: int = 0          # collectives that were complete at that commit
    complete: int = 0           # collectives that are complete now
    kept_from: int = 0          # it keeps the results of the collectives kept_from … complete - 1
    is_whole: bool = True       # it can hand the state of its commit over: no optimizer has changed it, or a copy was made
    can_take: bool = False      # it can go on from a later commit (with run.step())


@dataclass(frozen=True)
class Plan:
    """What the ranks of a new group do before they go on."""
    source: int | None = None              # the rank whose last commit is handed over; None: nobody has a state
    receivers: tuple[int, ...] = ()        # ranks that have no state, or take a later one
    keeper: int | None = None              # the rank that sends kept results; None: nobody lacks any
    results_from: dict[int, int] | None = None  # by rank that lacks some: the first collective whose result it lacks
    complete: int = 0                      # collectives that are complete for everybody once the results are there
    behind: tuple[int, ...] = ()           # ranks that lack results which nobody keeps: they must be replaced
    is_lost: bool = False                  # there is a state, and ranks that need it, and nobody can hand it over: all must start again


def plan_of(claims: Sequence[Claim]) -> Plan:
    """`claims` by rank. The source is the rank with the highest commit, the lowest one that can hand it over; the keeper is the source if it has completed
    as many collectives as anybody, else the lowest rank that has."""
    holders = [rank for rank, claim in enumerate(claims) if claim.has_state]
    if not holders:
        return Plan()
    complete = max(claims[rank].complete for rank in holders)
    position = max(claims[rank].position for rank in holders)
    newest = [rank for rank in holders if claims[rank].position == position]
    source = min(newest, key=lambda rank: (not claims[rank].is_whole, rank))
    keepers = [rank for rank in holders if claims[rank].complete == complete]
    # The one that keeps most comes first, so that as few ranks as possible are behind.
    keeper = min(keepers, key=lambda rank: (claims[rank].kept_from, rank != source, rank))
    too_late = [rank for rank in holders if claims[rank].complete < complete and claims[rank].complete < claims[keeper].kept_from]
    behind = tuple(rank for rank in too_late if not claims[rank].can_take or claims[rank].position == position)
    receivers = tuple(rank for rank, claim in enumerate(claims) if not claim.has_state or rank in too_late and rank not in behind)
    if receivers and not claims[source].is_whole:
        return Plan(source=source, receivers=receivers, complete=complete, is_lost=True)
    lacking = {rank: claims[rank].complete for rank in holders if claims[rank].complete < complete and rank not in too_late}
    lacking |= {rank: claims[source].at_commit for rank in receivers if claims[source].at_commit < complete}
    return Plan(source=source, receivers=receivers, keeper=keeper if lacking else None, results_from=lacking, complete=complete,
                behind=behind)
