"""What fires, what has ended and who hears of it, over passes, outages, refusals and clocks that jump."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_chain.clock import format_time
from nvrx_watch.history import (
    FLAP_SECONDS,
    KEEP_RESOLVED_SECONDS,
    LONGEST_LASTING_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    MAX_INCIDENTS,
    MAX_NOTICES_PER_SINK,
    RESOLVE_PASSES,
    due_notices,
    end_all,
    history_notes,
    incident_key,
    mark_good_pass,
    mark_refused,
    mark_sent,
    update_history,
)
from nvrx_watch.history_model import History, IncidentState, Notice, NoticeKind, SinkPolicy
from nvrx_watch.model import Finding, Severity, Subject

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SUBJECT = Subject(key="c0ffee", name="train", user="alice", uid=1000)
COOLDOWN = 4 * 3600.0
PAGER = SinkPolicy(name="pager", cooldown_seconds=COOLDOWN)
MUTE = SinkPolicy(name="mute", sends_resolve=False, cooldown_seconds=COOLDOWN)
LOG = SinkPolicy(name="log", minimum_severity=Severity.INFO, cooldown_seconds=COOLDOWN)
NOBODY_BLIND: frozenset[str] = frozenset()


def storm(severity: Severity = Severity.WARNING, scope: str = "chain", detector: str = "restart_storm") -> Finding:
    return Finding(detector=detector, severity=severity, scope=scope, title=f"{detector} in {scope}")


STORM = storm()
INFO = storm(Severity.INFO, detector="chain_completed")


@dataclass
class Desk:
    """Passes one after the other; every sink accepts unless it is named in `down`."""

    sinks: Sequence[SinkPolicy] = (PAGER,)
    at: datetime = START
    history: History = field(default_factory=History)
    heard: list[tuple[datetime, str, Notice]] = field(default_factory=list)

    def look(
        self,
        *findings: Finding,
        after: float = 60.0,
        blind: frozenset[str] = NOBODY_BLIND,
        down: frozenset[str] = frozenset(),
    ) -> list[str]:
        """One pass; what was accepted in it, as `sink kind`."""
        self.at += timedelta(seconds=after)
        self.history = update_history(self.history, findings, blind=blind, now=self.at)
        words = []
        for sink, notice in due_notices(self.history, findings, SUBJECT, self.sinks, self.at):
            if sink in down:
                self.history = mark_refused(self.history, sink, notice, self.at, lasting=False)
                continue
            self.history = mark_sent(self.history, sink, notice, self.at)
            self.heard.append((self.at, sink, notice))
            words.append(f"{sink} {notice.kind.value}")
        return words

    def state(self, finding: Finding = STORM) -> IncidentState:
        return self.history.incidents[incident_key(finding)].state


def test_a_trigger_is_sent_once_and_its_end_once() -> None:
    desk = Desk()
    assert desk.look(STORM) == ["pager trigger"]
    assert desk.look(STORM) == []
    assert desk.look() == []
    assert desk.look() == ["pager resolve"]
    assert desk.look() == []
    assert desk.heard[0][2].dedup_key == desk.heard[1][2].dedup_key == "nvrx-watch/c0ffee/restart_storm:chain"


def test_one_quiet_pass_ends_nothing() -> None:
    desk = Desk()
    desk.look(STORM)
    for _ in range(4):
        assert desk.look() == []
        assert desk.state() is IncidentState.FIRING
        assert desk.look(STORM) == []


def test_a_pass_that_could_not_see_ends_nothing_and_does_not_count() -> None:
    desk = Desk()
    blind = frozenset({STORM.detector})
    desk.look(STORM)
    for _ in range(5):
        assert desk.look(blind=blind) == []
    assert desk.look() == []
    assert desk.look(blind=blind) == []
    assert desk.look() == ["pager resolve"]


def test_blindness_of_one_detector_does_not_keep_the_incident_of_another_open() -> None:
    desk = Desk()
    desk.look(STORM)
    other = frozenset({"suspect_node"})
    assert [desk.look(blind=other), desk.look(blind=other)] == [[], ["pager resolve"]]


def test_a_repeat_comes_after_the_cooldown_and_says_that_it_is_one() -> None:
    desk = Desk()
    desk.look(STORM)
    assert desk.look(STORM, after=COOLDOWN - 1) == []
    assert desk.look(STORM, after=1) == ["pager trigger"]
    assert [notice.repeated for _, _, notice in desk.heard] == [False, True]


def test_what_becomes_critical_is_said_at_once() -> None:
    desk = Desk()
    desk.look(STORM)
    worse = storm(Severity.CRITICAL)
    assert desk.look(worse) == ["pager trigger"]
    assert desk.heard[-1][2].incident.severity is Severity.CRITICAL
    assert not desk.heard[-1][2].repeated
    # To and fro between the two is no news.
    assert [desk.look(STORM), desk.look(worse), desk.look(STORM), desk.look(worse)] == [[], [], [], []]


def test_information_is_an_incident_but_pages_nobody() -> None:
    desk = Desk(sinks=(PAGER, LOG))
    assert desk.look(INFO) == ["log trigger"]
    assert desk.state(INFO) is IncidentState.FIRING
    assert [desk.look(), desk.look()] == [[], ["log resolve"]]


def test_information_that_becomes_a_warning_is_paged() -> None:
    desk = Desk()
    assert desk.look(storm(Severity.INFO)) == []
    assert desk.look(STORM) == ["pager trigger"]


def test_a_sink_that_takes_no_resolve_gets_none() -> None:
    desk = Desk(sinks=(MUTE,))
    assert [desk.look(STORM), desk.look(), desk.look(), desk.look()] == [["mute trigger"], [], [], []]


def test_what_was_never_accepted_is_tried_again_and_never_resolved() -> None:
    desk = Desk(sinks=(PAGER, LOG))
    down = frozenset({"pager"})
    assert desk.look(STORM, down=down) == ["log trigger"]
    assert desk.look(STORM, down=down) == []
    assert [desk.look(down=down), desk.look(after=3600), desk.look(after=3600)] == [[], ["log resolve"], []]
    assert desk.look(STORM, after=FLAP_SECONDS + 1) == ["pager trigger", "log trigger"]


def test_a_resolve_that_was_not_accepted_is_tried_again() -> None:
    desk = Desk()
    desk.look(STORM)
    desk.look()
    assert desk.look(down=frozenset({"pager"})) == []
    assert [desk.look(), desk.look()] == [["pager resolve"], []]


def test_an_ended_incident_that_comes_back_soon_goes_on() -> None:
    desk = Desk()
    desk.look(STORM)
    first = desk.history.incidents[STORM.key].first_seen_at
    assert [desk.look(), desk.look()] == [[], ["pager resolve"]]
    # The receiver believes that it is over, so it has to hear that it is not.
    assert desk.look(STORM) == ["pager trigger"]
    assert desk.history.incidents[STORM.key].first_seen_at == first


def test_one_that_flaps_is_neither_resolved_nor_triggered_each_time() -> None:
    desk = Desk()
    for _ in range(20):
        desk.look(STORM)
        desk.look()
        desk.look()
    kinds = [notice.kind for _, _, notice in desk.heard]
    assert kinds == [NoticeKind.TRIGGER, NoticeKind.RESOLVE, NoticeKind.TRIGGER]
    assert desk.look(after=FLAP_SECONDS) == ["pager resolve"]


def test_flapping_without_resolves_stays_under_the_cooldown() -> None:
    desk = Desk(sinks=(MUTE,))
    for _ in range(20):
        desk.look(STORM)
        desk.look()
        desk.look()
    assert len(desk.heard) == 1


def test_one_that_comes_back_late_is_a_new_occurrence() -> None:
    desk = Desk(sinks=(PAGER, MUTE))
    desk.look(STORM)
    desk.look()
    desk.look()
    assert desk.look(STORM, after=FLAP_SECONDS + 1) == ["pager trigger", "mute trigger"]
    assert not desk.heard[-1][2].repeated
    assert desk.history.incidents[STORM.key].first_seen_at == format_time(desk.at)


def test_a_sink_that_missed_the_end_of_the_first_gets_one_end_for_both() -> None:
    desk = Desk()
    desk.look(STORM)
    desk.look()
    down = frozenset({"pager"})
    desk.look(down=down)
    assert desk.look(STORM, after=FLAP_SECONDS + 1) == ["pager trigger"]
    assert [desk.look(), desk.look(), desk.look()] == [[], ["pager resolve"], []]


def test_a_lost_history_costs_one_repeat() -> None:
    desk = Desk()
    desk.look(STORM)
    desk.history = History()
    assert [desk.look(STORM), desk.look(STORM), desk.look(STORM)] == [["pager trigger"], [], []]


def test_a_clock_that_was_set_back_neither_repeats_nor_silences() -> None:
    desk = Desk()
    desk.look(STORM)
    assert desk.look(STORM, after=-400 * 86400) == []
    assert [desk.look(STORM) for _ in range(10)] == [[]] * 10
    assert desk.look(STORM, after=COOLDOWN) == ["pager trigger"]


def test_a_stamp_that_is_no_time_counts_as_now() -> None:
    desk = Desk()
    desk.look(STORM)
    incident = desk.history.incidents[STORM.key]
    broken = msgspec.structs.replace(incident, sent={"pager": "yesterday"}, last_seen_at="9999-12-31T23:59:59-23:59")
    desk.history = History(incidents={STORM.key: broken}, last_good_pass_at="2300-01-01T00:00:00Z")
    assert desk.look(STORM) == []
    assert desk.history.last_good_pass_at == format_time(desk.at)
    assert desk.look(STORM, after=COOLDOWN) == ["pager trigger"]


def test_a_sink_that_is_down_is_asked_less_and_less_but_never_given_up() -> None:
    desk = Desk()
    down = frozenset({"pager"})
    tries = []
    for second in range(3600):
        before = desk.history.refusals.get("pager")
        desk.look(STORM, after=1, down=down)
        if desk.history.refusals.get("pager") != before:
            tries.append(second)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps[:5] == [15, 30, 60, 120, 240]
    assert set(gaps[5:]) == {int(LONGEST_WAIT_SECONDS)}
    assert desk.look(STORM, after=LONGEST_WAIT_SECONDS) == ["pager trigger"]
    assert desk.history.refusals == {}


def test_a_sink_that_asks_for_patience_gets_it_within_reason() -> None:
    desk = Desk()
    desk.history = update_history(History(), [STORM], blind=NOBODY_BLIND, now=desk.at)
    [(sink, notice)] = due_notices(desk.history, [STORM], SUBJECT, desk.sinks, desk.at)
    desk.history = mark_refused(desk.history, sink, notice, desk.at, lasting=False, retry_after_seconds=100.0)
    assert [desk.look(STORM, after=99), desk.look(STORM, after=1)] == [[], ["pager trigger"]]
    desk.history = mark_refused(desk.history, sink, notice, desk.at, lasting=False, retry_after_seconds=1e9)
    assert desk.history.refusals["pager"].wait_seconds == LONGEST_WAIT_SECONDS


def test_a_lasting_refusal_is_not_hammered_and_keeps_no_other_incident_back() -> None:
    desk = Desk()
    other = storm(scope="n1", detector="suspect_node")
    refusals = []
    for second in range(0, 48 * 3600, 60):
        desk.at += timedelta(seconds=60)
        desk.history = update_history(desk.history, [STORM], blind=NOBODY_BLIND, now=desk.at)
        for sink, notice in due_notices(desk.history, [STORM], SUBJECT, desk.sinks, desk.at):
            desk.history = mark_refused(desk.history, sink, notice, desk.at, lasting=True)
            refusals.append(second)
    gaps = [later - earlier for earlier, later in itertools.pairwise(refusals)]
    assert gaps[:3] == [300, 600, 1200]
    assert gaps == sorted(gaps)
    assert max(gaps) == LONGEST_LASTING_WAIT_SECONDS
    assert desk.look(STORM, other) == ["pager trigger"]
    assert desk.heard[-1][2].incident.key == other.key
    # What becomes critical is another message, which may well be taken.
    assert desk.look(storm(Severity.CRITICAL), other) == ["pager trigger"]


def test_old_ended_incidents_are_forgotten() -> None:
    desk = Desk()
    desk.look(STORM)
    desk.look()
    desk.look()
    desk.look(after=KEEP_RESOLVED_SECONDS - 300)
    assert STORM.key in desk.history.incidents
    desk.look(after=600)
    assert desk.history.incidents == {}


def test_an_open_incident_is_never_forgotten() -> None:
    desk = Desk()
    desk.look(STORM)
    desk.look(after=100 * 86400, blind=frozenset({STORM.detector}))
    assert desk.state() is IncidentState.FIRING


def test_a_flood_of_scopes_is_bounded_said_and_does_not_bury_a_critical_one() -> None:
    desk = Desk()
    flood = [storm(scope=f"n{number}", detector="suspect_node") for number in range(3 * MAX_INCIDENTS)]
    sent = desk.look(*flood)
    assert len(sent) == MAX_NOTICES_PER_SINK
    assert len(desk.history.incidents) == MAX_INCIDENTS
    assert history_notes(desk.history)[0].startswith(f"{2 * MAX_INCIDENTS} findings are not remembered")
    page = storm(Severity.CRITICAL)
    desk.look(*flood, page)
    assert desk.heard[MAX_NOTICES_PER_SINK][2].incident.key == page.key
    # Nobody is announced twice, although two thirds of them are seen and left out each time.
    for _ in range(60):
        desk.look(*flood, page)
    keys = [notice.incident.key for _, _, notice in desk.heard]
    assert len(keys) == len(set(keys)) == MAX_INCIDENTS
    for _ in range(RESOLVE_PASSES):
        desk.look()
    assert history_notes(desk.history) == ()


def test_of_two_findings_of_one_key_the_worse_counts() -> None:
    desk = Desk()
    desk.look(STORM, storm(Severity.CRITICAL), STORM)
    assert desk.history.incidents[STORM.key].severity is Severity.CRITICAL


@pytest.mark.parametrize("scope", ["x" * 100_000, "n1\n\x1b[2Jn2", "\ud800", "a\u202eb"])
def test_a_hostile_scope_gives_a_short_key_of_its_own(scope: str) -> None:
    finding, twin = storm(scope=scope), storm(scope=scope + "!")
    key = incident_key(finding)
    assert len(key) <= 300
    assert key.isprintable()
    assert key != incident_key(twin)
    history = update_history(History(), [finding], blind=NOBODY_BLIND, now=START)
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
    [(_, notice)] = due_notices(history, [finding], SUBJECT, (PAGER,), START)
    assert notice.finding is finding


def test_the_last_good_pass_survives_a_bad_one() -> None:
    history = mark_good_pass(History(), START)
    later = update_history(history, [], blind=NOBODY_BLIND, now=START + timedelta(hours=1))
    assert later.last_good_pass_at == format_time(START)


STEP = st.tuples(
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([5.0, 60.0, 60.0, 300.0, 1000.0, FLAP_SECONDS + 1, COOLDOWN / 2, COOLDOWN + 1]),
    st.sampled_from([0.0, 0.0, 0.0, 0.0, -86400.0, -600.0]),
    st.sampled_from([Severity.WARNING, Severity.WARNING, Severity.CRITICAL]),
)


@settings(max_examples=300)
@given(steps=st.lists(STEP, min_size=1, max_size=40))
def test_whatever_happens_pages_are_bounded_and_each_is_ended_once(
    steps: list[tuple[bool, bool, bool, float, float, Severity]],
) -> None:
    desk = Desk(sinks=(PAGER, MUTE))
    passed = 0.0
    told: dict[str, list[tuple[float, Notice]]] = {"pager": [], "mute": []}
    for fires, is_blind, is_down, after, jump, severity in steps:
        count = len(desk.heard)
        desk.look(
            *([storm(severity)] if fires else []),
            after=after + jump,
            blind=frozenset({STORM.detector}) if is_blind and not fires else NOBODY_BLIND,
            down=frozenset({"pager", "mute"}) if is_down else frozenset(),
        )
        passed += after
        for _, sink, notice in desk.heard[count:]:
            told[sink].append((passed, notice))
        assert len(desk.history.incidents) <= 1
    # Long enough for every end to be told, also of one that flapped.
    for _ in range(4):
        count = len(desk.heard)
        desk.look(after=FLAP_SECONDS + 1)
        passed += FLAP_SECONDS + 1
        told["pager"].extend((passed, notice) for _, sink, notice in desk.heard[count:] if sink == "pager")
        assert all(sink == "pager" for _, sink, _ in desk.heard[count:])
    _assert_pages_are_bounded(told["pager"])
    _assert_pages_are_bounded(told["mute"])
    assert all(notice.kind is NoticeKind.TRIGGER for _, notice in told["mute"])
    is_open = False
    for _, notice in told["pager"]:
        if notice.kind is NoticeKind.RESOLVE:
            assert is_open
        is_open = notice.kind is NoticeKind.TRIGGER
    assert not is_open


def _assert_pages_are_bounded(told: list[tuple[float, Notice]]) -> None:
    """Two triggers of one occurrence are a cooldown apart, or the later is worse, or an end lies between them."""
    for (at, earlier), (later_at, later) in itertools.pairwise(told):
        if NoticeKind.RESOLVE in (earlier.kind, later.kind):
            continue
        is_worse = (earlier.incident.severity, later.incident.severity) == (Severity.WARNING, Severity.CRITICAL)
        is_another = earlier.incident.first_seen_at != later.incident.first_seen_at
        assert later_at - at >= COOLDOWN or is_worse or is_another
    # Ends between them do not open a way to a page each pass: of one occurrence there is one more, then it counts as
    # flapping.
    triggers = [(at, one) for at, one in told if one.kind is NoticeKind.TRIGGER and not one.repeated]
    for (first, one), (_, two), (third, three) in zip(triggers, triggers[1:], triggers[2:], strict=False):
        severities = {one.incident.severity, two.incident.severity, three.incident.severity}
        assert third - first >= FLAP_SECONDS or len(severities) > 1


def test_the_end_of_the_chain_ends_every_incident_at_once_even_one_that_may_flap() -> None:
    desk = Desk()
    for findings in ((STORM,), (), (), (STORM,)):
        desk.look(*findings)
    assert desk.state() is IncidentState.FIRING
    desk.history = end_all(desk.history)
    assert [notice.kind for _, notice in due_notices(desk.history, (), SUBJECT, (PAGER,), desk.at)] == [
        NoticeKind.RESOLVE
    ]
