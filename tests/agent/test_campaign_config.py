"""YAML to typed configuration, with errors that name the file, the key and the remedy."""

import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agent.config import (
    OptimizeConfig,
    load_evaluation,
    load_optimize,
    protocol_of,
    to_yaml,
    validate,
)
from agent.journals.journal import Journal
from agent.models.ledger import LEDGER_FILE, Ledger, Spend
from agent.presets import preset_names, read_yaml
from agent.proposing.scripted import scripted_evaluation
from agent.runs import find_run, interruptible, open_run
from agent.types import Proposal
from kernelbench.suite import load_tasks
from rewards import speedup
from sandbox.errors import ConfigError
from sandbox.records import to_record
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import candidate, make_task, script


def error_of(tmp_path, text: str) -> str:
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_optimize(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_second: 3", "campaign.yaml: unknown key 'max_second'; did you mean 'max_seconds'?"),
        ("evaluation: {round: 3}", "unknown key 'evaluation.round'; did you mean 'evaluation.rou"),
        ("max_seconds: true", "campaign.yaml: max_seconds is true; expected a number"),
        ("max_candidates: no", "campaign.yaml: max_candidates is false; expected a number"),
        ("evaluation: {rounds: yes}", "evaluation.rounds is true; expected a number"),
        ("zzz: 1", "campaign.yaml: unknown key 'zzz'; known: tasks, device"),
        ("seed: x", "campaign.yaml: seed is 'x'; expected a valid integer"),
        ("seed: 2024-13-45", "campaign.yaml: not YAML: month must be in 1..12"),
        ("engine: dask", "campaign.yaml: engine is 'dask'; expected 'ray' or 'local'"),
        ("proposals_per_round: 0", "campaign.yaml: proposals_per_round is 0; expected at least 1"),
        ("max_candidates_per_task: -1", "max_candidates_per_task is -1; expected at least 1"),
        ("max_candidates: 0", "max_candidates is 0; expected at least 1"),
        ("max_seconds: .nan", "max_seconds is nan; expected above 0"),
        ("tasks_at_once: 0", "tasks_at_once is 0; expected at least 1"),
        ("lanes: -2", "lanes is -2; expected at least 1"),
        ("max_usd: -1", "max_usd is -1; expected at least 0"),
        ("tasks: []", "campaign.yaml: tasks is empty; expected at least one task"),
        ("tasks: softmax", "campaign.yaml: tasks is 'softmax'; expected a list"),
        ("learn: true", "campaign.yaml: learn needs weights of its own; expected --model local:"),
        ("model: 'local:'", "campaign.yaml: model is 'local:'; expected a checkpoint's folder"),
        ("confirm: maybe", "campaign.yaml: confirm is 'maybe'; expected true or false"),
        ("memory: {}", "campaign.yaml: memory.file is missing; it has no default"),
        ("train: cpu", "campaign.yaml: train is for a checkpoint; expected --model local:FOLDER"),
        ("{train: cpu, model: m}", "campaign.yaml: train is for a checkpoint; expected --model"),
        (
            "{model: a, models: [{name: b}, {name: b}]}",
            "campaign.yaml: models has no 'a'; it has b",
        ),
        ("models: [{name: b}, {name: b}]", "campaign.yaml: two of `models` have the same name"),
        ("{model: a, models: 3}", "campaign.yaml: models is 3; expected a list"),
        ("prices: 3", "campaign.yaml: prices is 3; expected keys and values"),
        ("memory: 3", "campaign.yaml: memory is 3; expected keys and values"),
        ("strategy: {kind: [fsr]}", "expected a name or a kind of best-of-n, fsr"),
        ("strategy: {kind: fsr, depth: 0}", "campaign.yaml: strategy: expected depth >= 1"),
        (
            "strategy: {kind: portfolio, arms: 3}",
            "campaign.yaml: strategy.arms is 3; expected a list",
        ),
        ("strategy: {kind: portfolio, across: 3}", "across is 3; expected keys and values"),
        ("evaluation: {min_pairs: 1}", "expected 2 <= min_pairs <= max_pairs"),
        ("evaluation: {rounds: 0}", "campaign.yaml: evaluation: rounds are 0"),
        ("evaluation: {run_timeout_s: -1}", "run_timeout_s is -1.0; expected above 0"),
        ("evaluation: {baselines: [complie]}", "baselines has 'complie'; expected some of compile"),
        ("evaluation: {changes: [foo]}", "changes has 'foo'; expected some of flattened"),
        ("evaluation: qick", "no evaluation preset; did you mean 'quick'?"),
        ("- a", "campaign.yaml: holds a list; expected keys and values"),
        (
            "a: [",
            "campaign.yaml:1:5: not YAML: while parsing a flow node, expected the node content",
        ),
        ("tasks: [a\nseed: 3", "campaign.yaml:2:5: not YAML: while parsing a flow sequence, expec"),
        ("seed: 1\na: \0", "campaign.yaml:2:4: not YAML: character 0 is not allowed"),
        ("? [a]\n: 1", "campaign.yaml:1:3: not YAML: while constructing a mapping, found unhash"),
        ("seed: 1\nlanes: 1\nseed: 2", "campaign.yaml:3:1: not YAML: key 'seed' is given twice"),
        ("evaluation: {rounds: 1, rounds: 2}", "campaign.yaml:1:25: not YAML: key 'rounds' is"),
        ("", "campaign.yaml: is empty; expected keys and values"),
        ("# nothing\n", "campaign.yaml: is empty; expected keys and values"),
        ("prices: {m: {inputs: 1}}", "key 'prices.m.inputs'; did you mean 'prices.m.input'?"),
        ("models: [{nam: m}]", "unknown key 'models.0.nam'; did you mean 'models.0.name'?"),
        ("models: [{name: m, weight: x}]", "campaign.yaml: models.0.weight is 'x'; expected"),
        ("strategy: {kind: fsr, depth: x}", "campaign.yaml: strategy.depth is 'x'; expected"),
        (
            "strategy: {kind: portfolio, arms: [{kind: fsr, dept: 1}]}",
            "unknown key 'strategy.arms.0.dept'; did you mean 'strategy.arms.0.depth'?",
        ),
        (
            "strategy: {kind: portfolio, arms: [fsr, {kind: fsr, depth: x}]}",
            "campaign.yaml: strategy.arms.1.depth is 'x'; expected a valid integer",
        ),
        ("evaluation: {preset: qick}", "campaign.yaml: evaluation: qick: no such file, and no ev"),
    ],
)
def test_a_bad_file_is_one_line_that_says_what_to_mend(tmp_path, text, message):
    error = error_of(tmp_path, text)
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("evaluation", "round: 3", "unknown key 'round'; did you mean 'rounds'?"),
        ("evaluation", "rounds: x", "rounds is 'x'; expected a valid integer"),
        ("strategy", "kind: fsrr", "kind is 'fsrr'; expected one of best-of-n, fsr"),
        ("strategy", "kind: [fsr]", "kind is ['fsr']; expected one of best-of-n, fsr"),
        ("strategy", "{kind: fsr, depth: x}", "depth is 'x'; expected a valid integer"),
    ],
)
def test_a_fault_in_a_file_that_a_file_names_is_told_of_that_one(tmp_path, key, text, message):
    inner = tmp_path / "inner.yaml"
    inner.write_text(text)
    assert error_of(tmp_path, f"{key}: {inner}").startswith(f"{inner}: {message}")


def test_a_folder_is_no_config(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder; expected a YAML file; presets: .*quick"):
        load_optimize(str(tmp_path))


def test_a_preset_is_blamed_by_its_name():
    with pytest.raises(ConfigError, match=r"^optimize preset gpu: tuning is 3; expected keys and"):
        validate(OptimizeConfig, {"tuning": 3}, read_yaml("gpu", "optimize")[0])


def test_a_file_that_is_no_text_is_one_line(tmp_path):
    path = tmp_path / "campaign.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: 'utf-8' codec"):
        load_optimize(str(path))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"engine": "loca"}, "engine is 'loca'; expected 'ray' or 'local'"),
        ({"max_candidates": 0}, "max_candidates is 0; expected at least 1"),
        ({"max_candidate": 3}, "optimize: unknown key 'max_candidate'; did you mean 'max_cand"),
        ({"strategy": {"kind": "fsr", "depth": 0}}, "strategy: expected depth >= 1"),
        ({"max_usd": 5.0}, "max_usd is for models at an endpoint; expected --model NAME"),
        ({"language": "torch", "model": "m"}, "language is 'torch', which holds no kernel"),
    ],
)
def test_what_overrides_a_file_is_not_blamed_on_it(overrides, message):
    with pytest.raises(ConfigError) as caught:
        load_optimize(**overrides)
    assert str(caught.value).startswith(message)


def test_max_reply_tokens_is_of_every_model_that_has_no_limit_of_its_own(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("max_reply_tokens: 100\nmodels: [{name: a}, {name: b, max_tokens: 7}]\n")
    assert [m.max_tokens for m in load_optimize(str(path)).asked] == [100, 7]


def test_a_files_caps_wait_for_the_models_that_are_typed_beside_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("max_usd: 5\nmodel: m\nmax_reply_tokens: 100\n")
    saved = tmp_path / "saved.yaml"
    saved.write_text(to_yaml(load_optimize(str(path))))
    assert load_optimize(str(saved), max_requests=3).caps.max_usd == 5
    path.write_text("max_usd: 5\n")
    assert load_optimize(str(path)).asked == ()


def test_a_files_train_waits_for_the_checkpoint_that_is_typed_beside_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("train: cpu\n")
    assert load_optimize(str(path), model="local:nowhere").train == "cpu"
    path.write_text(to_yaml(load_optimize(model="m")))
    assert load_optimize(str(path)).train == "small", "a saved config of a run without one"


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        load_optimize("quikstart")


@pytest.mark.parametrize("name", preset_names("optimize"))
def test_every_optimize_preset_loads(name):
    assert load_optimize(name).tasks


@pytest.mark.parametrize("name", preset_names("evaluation"))
def test_every_evaluation_preset_is_known_by_its_name(name):
    assert load_evaluation(name).preset == name


def test_the_quick_preset_is_the_default():
    assert load_evaluation("quick") == EvalConfig()


def test_keys_of_evaluation_go_over_its_preset(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("evaluation: {preset: strict, rounds: 5}")
    assert load_optimize(str(path)).evaluation == replace(load_evaluation("strict"), rounds=5)


def test_a_file_of_evaluation_goes_over_the_preset_that_it_names(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("{preset: strict, baselines: [compile, cuda_graph], hardware_counters: false}")
    strict = load_evaluation("strict")
    found = load_evaluation(str(path))
    given = {"baselines": ("compile", "cuda_graph"), "hardware_counters": False}
    assert found == replace(strict, **given)
    words = "strict with baselines compile and cuda_graph, hardware_counters off"
    assert (protocol_of(found), protocol_of(strict)) == (words, "strict")
    config = tmp_path / "c.yaml"
    config.write_text(f"evaluation: {{preset: {path}, rounds: 5}}")
    assert load_optimize(str(config)).evaluation == replace(found, rounds=5)


def test_a_preset_that_a_file_of_evaluation_mistypes_is_no_label(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("{preset: strikt, rounds: 5}")
    with pytest.raises(ConfigError, match=r"own\.yaml: preset 'strikt' .* mean 'strict'\?"):
        load_evaluation(str(path))


def test_the_command_line_goes_over_the_file():
    config = load_optimize("quickstart", max_seconds=7.5, engine=None, tasks=("softmax",))
    assert (config.max_seconds, config.engine, config.tasks) == (7.5, "ray", ("softmax",))


def test_a_campaign_that_learns_has_rounds_to_learn_from_by_default():
    """The quickstart's three candidates a task are no group: nothing was learned from them."""
    learns = load_optimize(model="local:policy", learn=True)
    assert learns.tasks == ("builtin",)
    assert learns.max_candidates_per_task >= 100 * learns.proposals_per_round
    assert learns.max_seconds is None
    few = load_optimize("quickstart", model="local:policy", learn=True)
    assert few.max_candidates_per_task == load_optimize().max_candidates_per_task == 3


def test_the_resolved_config_is_saved_and_loads_again(tmp_path):
    config = load_optimize(seed=3)
    with open_run("first", config, tmp_path) as journal:
        assert journal.config()["seed"] == 3
    saved = tmp_path / "first" / "config.yaml"
    assert load_optimize(str(saved)) == config
    assert yaml.safe_load(to_yaml(config))["evaluation"]["preset"] == "quick"


def test_a_run_goes_on_with_a_larger_budget_but_not_with_other_settings(tmp_path):
    config = load_optimize()
    with open_run("r", config, tmp_path):
        pass
    with open_run("r", replace(config, max_seconds=1e6, engine="local"), tmp_path):
        pass
    with (
        pytest.raises(ConfigError, match="seed was 0, now 1"),
        open_run("r", replace(config, seed=1), tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tasks": ("mse",)}, "tasks was ['builtin/bias_gelu', "),
        ({"evaluation": EvalConfig(rounds=7)}, "evaluation.rounds was 6, now 7"),
    ],
)
def test_what_differs_from_the_run_is_told_with_a_way_on(tmp_path, change, told):
    with open_run("r", load_optimize(), tmp_path):
        pass
    with (
        pytest.raises(ConfigError) as caught,
        open_run("r", replace(load_optimize(), **change), tmp_path),
    ):
        pass
    assert told in str(caught.value)
    saved = tmp_path / "r" / "config.yaml"
    way = f"; give another --name, or go on with warpsmith optimize --config {saved} and no other"
    assert way in str(caught.value)
    with open_run("r", load_optimize(str(saved)), tmp_path):
        pass


def test_a_run_goes_on_however_its_policys_folder_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_optimize(model="local:policy", greedy=True)
    for model in ("local:policy", f"local:{tmp_path / 'policy'}"):
        with open_run("r", replace(config, model=model), tmp_path):
            pass
    other = replace(config, model="local:another")
    with pytest.raises(ConfigError, match="other settings"), open_run("r", other, tmp_path):
        pass


def test_a_run_of_a_version_that_knew_fewer_settings_goes_on(tmp_path):
    config = load_optimize()
    record = to_record(config)
    del record["features"], record["evaluation"]["profile_searches"]
    (tmp_path / "r").mkdir()
    with Journal(tmp_path / "r") as journal:
        journal.record_config(record)
    with open_run("r", config, tmp_path):
        pass
    searching = replace(config, evaluation=replace(config.evaluation, profile_searches=True))
    with pytest.raises(ConfigError, match="other settings"), open_run("r", searching, tmp_path):
        pass


def failing(name: str, runs: Path, work: Callable[[Journal], object] = lambda _: None) -> None:
    def end(journal: Journal) -> None:
        work(journal)
        raise RuntimeError

    with pytest.raises(RuntimeError), open_run(name, load_optimize(), runs) as journal:
        end(journal)


def evaluated(journal: Journal) -> None:
    source = script(1, speedup=2.0)
    journal.record_task(make_task("a"))
    journal.record_proposals(0, [Proposal(candidate("a", source), "p", "s")])
    found = scripted_evaluation(candidate("a", source), EvalConfig(), Status.PASSED, 2.0)
    journal.record_evaluation(make_task("a"), found, reward=speedup.reward(found))


def test_a_start_that_fails_before_anything_was_evaluated_leaves_no_new_run(tmp_path):
    failing("new", tmp_path)
    failing("begun", tmp_path, lambda journal: journal.record_task(make_task("a")))
    assert list(tmp_path.iterdir()) == []


def test_a_start_on_a_full_disk_leaves_no_new_run(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "warpsmith-test", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        (tmp_path / "full").write_bytes(bytes(4096))
        told = pytest.raises(ConfigError, match="new: cannot be written")
        with told, open_run("new", load_optimize(), tmp_path):
            pass
        assert not (tmp_path / "new").exists()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_start_that_fails_takes_nothing_away_that_was_there(tmp_path):
    with open_run("older", load_optimize(), tmp_path):
        pass
    (tmp_path / "users").mkdir()
    failing("older", tmp_path)
    failing("users", tmp_path)
    failing("evaluated", tmp_path, evaluated)
    with Ledger(tmp_path / "unused.jsonl") as unused:
        unused.reserve(Spend(requests=1))
    failing("paid", tmp_path, lambda j: (tmp_path / "unused.jsonl").rename(j.folder / LEDGER_FILE))
    assert {p.name for p in tmp_path.iterdir()} == {"older", "users", "evaluated", "paid"}


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden"])
def test_a_run_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="run name"), open_run(name, load_optimize(), tmp_path):
        pass


def test_a_mistyped_run_is_answered_with_the_nearest(tmp_path):
    with open_run("first", load_optimize(), tmp_path):
        pass
    with pytest.raises(ConfigError, match="did you mean 'first'"):
        find_run("frist", tmp_path)


def test_the_first_interrupt_asks_and_the_second_insists():
    told = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with interruptible(lambda: told.append(1)) as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGTERM)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert told == [1]
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_the_quickstart_names_a_dozen_tasks_that_exist():
    tasks = [task for spec in load_optimize().tasks for task in load_tasks(spec, "cpu")]
    assert len({task.id for task in tasks}) >= 12


def test_a_total_of_candidates_is_not_cut_by_the_few_a_task_that_nobody_asked_for(tmp_path):
    assert load_optimize(max_candidates=20).max_candidates_per_task == 20
    assert load_optimize(max_candidates=2).max_candidates_per_task == 3
    file = tmp_path / "own.yaml"
    file.write_text("max_candidates_per_task: 5\n")
    assert load_optimize(str(file), max_candidates=20).max_candidates_per_task == 5


def test_a_task_that_is_named_twice_is_one_task():
    twice = load_optimize(tasks=["builtin/relu", "builtin/softmax", "builtin/relu"])
    assert twice.tasks == ("builtin/relu", "builtin/softmax")


def test_a_type_of_gpu_is_chosen_in_a_cluster_only():
    with pytest.raises(ConfigError, match="--gpu-type is of a Ray cluster, and the engine is loc"):
        load_optimize(typed=True, engine="local", gpu_type="H100")
