"""Islands, crossover, novelty and migration, from the attempts alone."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.model import ScriptedModel
from agent.prompts.render import Scene
from agent.proposing.model_proposer import TWIN, ModelProposer
from agent.proposing.scripted import scripted_evaluation
from agent.strategies.evolve import Evolve
from agent.strategies.fsr import FEATURE
from agent.strategies.islands import GENERATION, ISLAND, members, populations
from agent.strategies.novelty import distinct, machine_code, normal_form
from agent.types import Attempt, Proposal, Turn
from rewards.types import Reward
from sandbox.evidence import MACHINE_CODE, Evidence, Layer, Weight
from sandbox.types import Candidate, EvalConfig, Language, Status, Task

TASK = Task("t", "class Model: ...", "cpu")
SCENE = Scene(TASK, Language.CPP)


def attempt(
    name: str,
    speedup: float | None = None,
    island: int | None = None,
    generation: int = 0,
    *,
    strategy: str = "evolve propose",
    parents: Sequence[Attempt] = (),
    feature: str | None = None,
) -> Attempt:
    """Passed with a speedup, or wrong; of no island where it is a seed."""
    candidate = Candidate(TASK.id, Language.CPP, f"class ModelNew:\n    name = {name!r}\n")
    status = Status.WRONG_VALUE if speedup is None else Status.PASSED
    evaluation = scripted_evaluation(candidate, EvalConfig(), status, speedup or 1.0)
    born = {} if island is None else {ISLAND: island, GENERATION: generation}
    features = born if feature is None else {**born, FEATURE: feature}
    ids = tuple(parent.proposal.candidate.id for parent in parents)
    return Attempt(Proposal(candidate, "m", strategy, ids, features), evaluation, Reward(None))


def names(population: Sequence[Attempt]) -> list[str]:
    return [a.proposal.candidate.source.split("'")[1] for a in population]


def test_islands_share_the_questions_evenly_and_replies_know_their_island():
    asks = Evolve(islands=3).asks(SCENE, [], 4, 0)
    assert Counter(ask.features[ISLAND] for ask in asks) == {0: 2, 1: 1, 2: 1}
    assert {ask.features[GENERATION] for ask in asks} == {0}
    later = Evolve(islands=3).asks(SCENE, [attempt("a", 2.0, 0), attempt("b", 2.0, 1)], 1, 1)
    assert later[0].features[ISLAND] == 2


def test_seeds_settle_in_turn_and_a_child_without_an_island_lives_with_its_parent():
    seeds = [attempt(str(i), 1.0 + i) for i in range(3)]
    tuned = attempt("tuned", 1.5, parents=[seeds[1]], strategy="tune")
    assert [m.island for m in members([*seeds, tuned], 2)] == [0, 1, 0, 1]


@pytest.mark.parametrize("features", [{}, {GENERATION: 3}], ids=["tuned", "of another arm"])
def test_what_was_born_late_has_not_moved_on_before(features):
    history = [attempt("a", 2.0, 0), attempt("b", 1.2, 1), attempt("c", 1.1, 0, generation=2)]
    late = attempt("late", 9.0, parents=history[:1])
    late = replace(late, proposal=replace(late.proposal, features=features))
    found = members([*history, late], 2)
    assert names(populations(found, 2, 2, 1, 3)[1]) == ["b", "a"]
    assert names(populations(found, 2, 2, 1, 4)[1]) == ["b", "a", "late"]


def test_an_island_breeds_from_its_own_and_begins_anew_while_it_has_none():
    history = [attempt("a", 2.0, 0), attempt("b", 1.2, 0)]
    strategy = Evolve(migrate_every=9, crossover_share=1.0)
    steps = {a.features[ISLAND]: a.step for a in strategy.asks(SCENE, history, 3, 1)}
    assert steps == {0: "crossover", 1: "propose"}


def test_the_best_of_an_island_moves_on_in_the_ring_when_its_time_has_come():
    history = [attempt("a", 2.0, 0), attempt("a2", 1.1, 0), attempt("b", 1.2, 1)]
    late = attempt("late", 9.0, 0, generation=2)
    found = members([*history, late], 3)
    assert [names(p) for p in populations(found, 3, 2, 1, 1)] == [["a", "a2", "late"], ["b"], []]
    assert [names(p) for p in populations(found, 3, 2, 1, 2)] == [
        ["a", "a2", "late"],
        ["b", "a"],
        ["b"],
    ]
    assert names(populations(found, 3, 2, 1, 4)[1]) == ["b", "a", "late"]
    assert [names(p) for p in populations(found, 3, 2, 0, 4)] == [["a", "a2", "late"], ["b"], []]


def test_a_crossover_shows_two_parents_of_distinct_buckets_with_their_scores():
    history = [attempt("slow", 1.1, 0), attempt("same", 1.11, 0), attempt("fast", 3.0, 0)]
    [ask] = Evolve(islands=1, crossover_share=1.0).asks(SCENE, history, 1, 1)
    text = ask.messages[1]["content"]
    assert ask.step == "crossover"
    assert len(ask.parents) == 2
    assert history[2].proposal.candidate.id in ask.parents
    assert "(score: 3.00x)" in text
    assert "name = 'fast'" in text
    assert "one child of both" in text


def test_a_mutation_names_a_feature_that_its_parent_has_not_seen():
    parent = attempt("p", 2.0, 0)
    tried = ["fusion", "tiling", "vectorisation", "accumulators", "threads", "streaming stores"]
    children = [attempt(f, None, 0, 1, parents=[parent], feature=f) for f in tried]
    strategy = Evolve(islands=1, crossover_share=0.0, repair_share=0.0)
    [ask] = strategy.asks(SCENE, [parent, *children], 1, 2)
    assert (ask.step, ask.features[FEATURE]) == ("improve", "fewer passes")
    repeats = [child.proposal for child in children]
    [again] = strategy.asks(replace(SCENE, repeats=repeats), [parent], 1, 2)
    assert again.features[FEATURE] == "fewer passes", "also where it answered with known programs"


def test_a_repair_stays_on_the_island_of_the_failure():
    history = [attempt("a", 2.0, 0), attempt("broken", None, 1)]
    [repair] = [a for a in Evolve().asks(SCENE, history, 3, 1) if a.step == "repair"]
    assert repair.features[ISLAND] == 1


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("x = 1  # a\n", "x = 1", True),
        ("def f():\n    'why'\n    return 1", "def f():\n\n    return (1)", True),
        ("S = '''\nint a; // x\n'''", "S = '''int /* y */   a ;\n\n'''", True),
        ("S = '''\n#define A 1\nf(A)\n'''", "S = '''\n#define A 1 f(A)\n'''", False),
        ('S = """\nf("a b");\n"""', 'S = """\nf("a  b");\n"""', False),
        ("S = '''\nx = y;\n'''", "S = '''\nx = z;\n'''", False),
        ("x = 'a  b'", "x = 'a b'", False),
        ("S = '''\na /* b\n c\n'''", "S = '''\na /* b\n d\n'''", False),
        ("not python (", "not  python\n(", True),
    ],
)
def test_comments_and_blanks_make_no_new_program_and_all_else_does(one, two, same):
    forms = [normal_form(Candidate("t", Language.CUDA, source)) for source in (one, two)]
    assert (forms[0] == forms[1]) == same


def test_comments_that_never_end_are_read_once():
    source = "S = '''\n" + "/* a\n" * 10_000 + "'''\nclass ModelNew: ...\n"
    began_s = time.perf_counter()
    normal_form(Candidate("t", Language.CUDA, source))
    assert time.perf_counter() - began_s < 1, "10 s where each beginning looks for its end"


HOST = """
import cupy
SOURCE = '''
// {comment}
__global__ void f(float* {name}) {{ {name}[0] = 1; }}
'''
KERNEL = cupy.RawKernel(SOURCE, "f")
class ModelNew:
    def forward(self, x):
        KERNEL(({blocks},), (128,), (x,))
"""
JIT = """
import triton
@triton.autotune(configs=[triton.Config({{"BLOCK": {block}}})], key=[])
@triton.jit
def f(x, {name}, BLOCK):
    {name} = x
class ModelNew:
    def forward(self, x):
        f[({blocks},)](x, 1)
"""


def replace_source(attempt: Attempt, old: str, new: str) -> Attempt:
    candidate = attempt.proposal.candidate
    assert old in candidate.source
    candidate = replace(candidate, source=candidate.source.replace(old, new))
    return replace(attempt, proposal=replace(attempt.proposal, candidate=candidate))


@pytest.mark.parametrize("text", [HOST, JIT])
def test_machine_code_tells_twins_that_launch_it_alike(text):
    def built(code: str, name: str = "x", blocks: int = 1, block: int = 64) -> Attempt:
        plain = attempt(name, 2.0)
        source = text.format(name=name, blocks=blocks, block=block, comment=name)
        candidate = Candidate(TASK.id, Language.CUDA, source)
        seen = Evidence(Layer.RUNTIME, Weight.CLEAN, ("kernel f: 32", f"{MACHINE_CODE}{code}"))
        evaluation = replace(plain.evaluation, evidence=(seen,))
        proposal = replace(plain.proposal, candidate=candidate)
        return replace(plain, proposal=proposal, evaluation=evaluation)

    assert machine_code(attempt("cpu", 1.0)) is None
    first, renamed = built("1f"), built("1f", "longer")
    assert distinct([first, renamed]) == [first]
    others = [built("2e", "longer"), built("1f", blocks=2), attempt("d", 1.0)]
    assert distinct([first, *others]) == [first, *others]
    if text is JIT:
        assert machine_code(first) != machine_code(built("1f", block=128))
        scripted = replace_source(first, "@triton.jit", "@torch.jit.script")
        assert machine_code(scripted) != machine_code(replace_source(scripted, "x = x", "x = 2"))
    else:
        text_of = replace_source(first, "import cupy", "import cupy\nTEXT = '''\none\n'''")
        assert machine_code(text_of) != machine_code(replace_source(text_of, "\none", "\ntwo"))


def reply(comment: str) -> str:
    return f"```python\n# {comment}\nclass ModelNew:\n    name = 'a'\n```\n"


@pytest.mark.parametrize(("novelty", "twins"), [(True, 2), (False, 0)])
def test_a_known_program_in_other_clothes_is_a_duplicate_unless_novelty_is_off(novelty, twins):
    model = ScriptedModel([reply("one"), reply("two"), reply("three"), "no code"])
    proposer = ModelProposer(model, {}, Evolve(novelty=novelty))
    first, second = proposer.propose(TASK, [], 2)
    judged = Attempt(
        first, scripted_evaluation(first.candidate, EvalConfig(), Status.PASSED, 2.0), Reward(1)
    )
    third, empty = proposer.propose(TASK, [judged], 2, Turn(1))
    made = [first, second, third, empty]
    assert sum(TWIN in p.features for p in made) == twins
    assert (first.candidate == second.candidate == third.candidate) == novelty
    assert "three" in (third.reply or ""), "what was paid for is kept"
    assert empty.candidate.source.startswith("# no code")
