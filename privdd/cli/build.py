"""From a composed config to the objects of a run; whatever cannot run is refused here, before
anything is computed.

``data.standardise``: the method's classifiers standardise the images that they are given, with
    published constants."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import dp_accounting as dpa
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from attacks.inversion.labels import describe_open_classes
from attacks.types import Attack, Surface
from privdd.auditing.replay import spread_replays
from privdd.cli import settings
from privdd.cli.compose import compose_config, config_dir, default_attacks
from privdd.cli.plain_config import iterate_settings, mapping_at, to_plain_settings
from privdd.cli.secret import SECRET_KEY as SECRET
from privdd.cli.secret import missing_secret_error, secret_of_config
from privdd.cli.type_check import (
    TypeCheck,
    check_setting_numbers,
    declared_parameters,
    error_with_place,
)
from privdd.core.rng import Keys
from privdd.core.types import Problem, RecordShape, Shard, is_image
from privdd.core.validation import BadConfig, check_text
from privdd.data.dataset import Dataset, Scale, digest_split, published_scale
from privdd.data.partition import Partition, add_hard_examples, hard_example_counts, make_shards
from privdd.data.sources import check_data_settings, load_dataset
from privdd.federated.aggregation import Trust
from privdd.federated.experiment import CaptureSettings, Experiment
from privdd.federated.method import Method
from privdd.federated.settings import (
    SHARED_COUNTS,
    AuditSettings,
    PrivacySettings,
    RunSettings,
)
from privdd.federated.simulation import Plan, too_few_clients_warning
from privdd.models import ModelSpec
from privdd.models.networks import check_record_shape
from privdd.privacy.calibration import calibrate
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import settings_hash
from privdd.runtime.engine import IN_THIS_PROCESS, Engine
from privdd.runtime.yaml_files import TARGET

# text or null
COMMAND_SETTINGS = ("name", "run", "resume", "scores", "tracking", "scores_surface", "policy")
# what is called with the settings of a group that has no _target_
GROUP_CLASSES: Mapping[str, Callable[..., Any]] = {
    "partition": Partition,
    "engine": Engine,
    "capture": CaptureSettings,
    "data": load_dataset,
}
MAX_ROUNDS = 10**6  # each is planned one by one
Role = TypeVar("Role", Method, Mechanism, Attack)
# Images stay in [0, 1] wherever else they are: in attacks and their distances, in what mechanisms
# clip, in pictures. For methods that average models this is what standardising the records would
# be. Methods that learn images (FedDM, FedLGD) learn them in [0, 1], where the papers' code learns
# them in the standardised space.

STANDARDISED_CLASSIFIERS = ("convnet", "resnet18", "smallcnn", "simplecnn", "lenet", "mlp")
# their classifiers read what is no image: constants of images mean nothing there
NO_IMAGE_INPUT = {
    "FedRD": "its classifier reads projected records",
    "FedFed": "its classifier reads shared features as well as the records",
    "FedFedVirtual": "its classifier reads shared features as well as the records",
}


@dataclass(frozen=True)
class TypedSettings:
    """The settings of a config beside its methods, mechanisms and attacks.

    Attributes:
        command: Those that need no class of a run.
        partition: Who holds which record.
        engine: Where tasks run.
        capture: Which sent artifacts are kept.
        trust: What the server sees.
        data: The arguments of ``load_dataset``.
    """

    command: settings.CommandSettings
    partition: Partition
    engine: Engine
    capture: CaptureSettings
    trust: Trust
    data: Mapping[str, Any]


def check_config_types(config: DictConfig) -> TypedSettings:
    """Check that every value is of the type that the code declares for it, and in its range.

    No method, mechanism or attack is built yet.

    Returns:
        The typed settings.

    Raises:
        BadConfig: One line with key, value and what is allowed.
    """
    check = TypeCheck(config)
    for key, value in iterate_settings(to_plain_settings(config)):
        if key == SECRET:  # no message may hold it; ``secret_of_config`` checks it
            continue
        check_setting_numbers(key, value, check.source_key_of(key))
    for key in COMMAND_SETTINGS:
        check_text(key, config.get(key), optional=True)
    for key in ("algo", "model"):
        check.check_built_node(key, to_plain_settings(config[key]))
    for group in ("privacy.mechanisms", "attack"):
        if OmegaConf.select(config, group) is not None:
            nodes = mapping_at(config, group)
        else:
            nodes = {}
        for name, node in nodes.items():
            check.check_built_node(f"{group}.{name}", node)
    for group, kind in GROUP_CLASSES.items():
        check.check_arguments(group, mapping_at(config, group), *declared_parameters(kind))
    return typed_settings(config)


def typed_settings(config: DictConfig) -> TypedSettings:
    """Turn a config into typed settings: behind them no code reads it by name.

    Raises:
        ValueError: One line with key, value and what is allowed.
    """
    data = mapping_at(config, "data")
    check_data_settings(
        data["name"],
        size=data.get("size"),
        limit=data.get("limit"),
        test_limit=data.get("test_limit"),
    )
    return TypedSettings(
        command=settings.command_settings(config),
        partition=Partition(**mapping_at(config, "partition")),
        engine=Engine(**mapping_at(config, "engine")),
        capture=CaptureSettings(**mapping_at(config, "capture")),
        trust=settings.trust_settings(config),
        data=data,
    )


def standardise_classifiers(config: DictConfig) -> Any:
    """``config.algo`` as plain values, its classifiers given the published constants where they are
    asked for.

    Raises BadConfig for a method whose classifiers read no images.
    """
    algo = dict(mapping_at(config, "algo"))
    data = config.get("data") or {}
    if not data.get("standardise"):
        return algo
    name = str(algo[TARGET]).rsplit(".", 1)[-1]
    if name in NO_IMAGE_INPUT:
        raise BadConfig(f"data.standardise=true: not for {name}: {NO_IMAGE_INPUT[name]}")
    changed = _add_scale(algo, published_scale(str(data["name"])))
    if changed == algo:
        raise BadConfig(
            f"data.standardise=true: would do nothing: {name} has no network that reads images"
        )
    return changed


def _add_scale(node: Any, scale: Scale) -> Any:
    if not isinstance(node, dict):
        return node
    scaled = {key: _add_scale(value, scale) for key, value in node.items()}
    is_own = str(node.get(TARGET)).endswith(".OwnModel")
    if is_own or (
        str(node.get(TARGET)).endswith(".ModelSpec")
        and node.get("name") in STANDARDISED_CLASSIFIERS
    ):
        scaled["scale"] = [list(part) for part in scale]
    return scaled


def instantiate_node(node: Any, place: str = "", source_key_of: Callable[[str], str] = str) -> Any:
    """Build the object that a ``_target_`` config describes. Raises the constructor's own
    ValueError, or BadConfig.

    place: its key in the config, with which messages begin; source_key_of: key -> the key that a
        setting was typed by."""
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError):
            raise error_with_place(cause, place, to_plain_settings(node), source_key_of) from None
        raise BadConfig(" ".join(str(cause or error).split())[:300]) from None


def _build_method(config: DictConfig) -> Method:
    source_key_of = TypeCheck(config).source_key_of
    node = instantiate_node(standardise_classifiers(config), "algo", source_key_of)
    method = _require_role(node, Method, "algo")  # type: ignore[type-abstract]
    if method.rounds > MAX_ROUNDS:
        raise BadConfig(f"algo: {method.rounds} rounds; at most {MAX_ROUNDS} are allowed")
    return method


def build_experiment(
    config: DictConfig, *, noise_here: bool = True, load: Callable[..., Dataset] = load_dataset
) -> Experiment:
    """Assemble the experiment of a config.

    Where ``privacy.epsilon`` asks for it, ``privacy.noise_multiplier`` of the config becomes what
    was calibrated, and the numbers that ``audit.replays`` comes to.

    Args:
        config: A composed or stored config.
        noise_here: Whether this process draws the clients' noise, so that it needs their secret
            where there is one.
        load: Where the data come from, called as ``load_dataset`` is.

    Returns:
        Everything that a run needs.

    Raises:
        ValueError: One line, for anything that cannot run.
    """
    typed = check_config_types(config)
    run = typed.command.run
    privacy = typed.command.privacy
    audit = typed.command.audit
    secret = secret_of_config(config)
    keys = Keys(run.seed, secret=(secret or "").encode())
    method = _build_method(config)
    mechanisms = _build_mechanisms(config, method)
    method.check_mechanisms(mechanisms)
    _check_device(run.device, method, typed.engine)
    dataset, shards = load_shards(typed, keys, load)
    if not is_image(dataset.shape):
        check_rows_fit(method, dataset.shape)
    if noise_here and privacy.noise_source == "secret" and secret is None:
        raise missing_secret_error()
    plan = _assemble_plan(typed, keys, method, mechanisms, dataset, shards)
    if privacy.epsilon is not None:
        plan = _calibrate_noise(config, plan, privacy)
        calibrated = settings.command_settings(config)
        run = calibrated.run
        privacy = calibrated.privacy
    mechanisms = plan.trust.split_mechanisms(plan.mechanisms, len(plan.asked_clients(0)))
    plan = replace(
        plan,
        mechanisms=mechanisms,
        method=plan.method.released_through(mechanisms, plan.problem),
        settings=_noise_settings_hash(run, audit),
        paired_noise=privacy.paired_noise,
        data=digest_split(dataset, shards),
    )
    _warn_of_settings(privacy, plan, dataset.classes, shards)
    if audit is not None:
        audit = spread_replays(audit, plan, shards[plan.victim])
        _store_split(config, audit)
    typed.capture.check_selection(plan)
    return Experiment(run, privacy, audit, plan, dataset, shards, typed.engine, typed.capture)


def _assemble_plan(
    typed: TypedSettings,
    keys: Keys,
    method: Method,
    mechanisms: Mapping[str, Mechanism],
    dataset: Dataset,
    shards: Sequence[Shard],
) -> Plan:
    """The plan under its trust model, before noise is calibrated. Raises BadConfig if the audited
    client never takes part."""
    run = typed.command.run
    privacy = typed.command.privacy
    audit = typed.command.audit
    problem = Problem(
        dataset.shape, dataset.classes, len(shards), run.device, columns=dataset.columns
    )
    if "update" in mechanisms:
        method = method.client_private()
    victim = _choose_victim(audit, shards)
    plan = Plan(
        keys,
        problem,
        method,
        mechanisms,
        privacy.noise_source,
        privacy.relation,
        float(run.participation),
        victim,
    )
    plan = apply_trust_model(plan, typed.trust)
    if audit is not None:
        _check_victim_participates(plan)
    return plan


def check_rows_fit(method: Method, shape: RecordShape) -> None:
    """Check that a method and all that it is made of can read rows of a table.

    Args:
        method: With its settings.
        shape: Of a record, (d,).

    Raises:
        BadConfig: One line, with what needs images.
    """
    for part in _parts_of(method):
        name = type(part).__name__
        if isinstance(part, ModelSpec):
            check_record_shape(part, shape)
        if why := getattr(part, "why_images_only", ""):
            raise BadConfig(f"algo: {name} needs images, and the records are rows: {why}")
        if getattr(part, "augment", "none") != "none":
            raise BadConfig(
                f"{name}.augment={part.augment}: it transforms images, and the records are rows of "
                "a table; must be none"
            )


def _parts_of(settings: Any) -> Iterator[Any]:
    """An object and the objects among its settings, at any depth."""
    yield settings
    for field in fields(settings):
        value = getattr(settings, field.name, None)
        if is_dataclass(value):
            yield from _parts_of(value)


def load_shards(
    typed: TypedSettings, keys: Keys, load: Callable[..., Dataset] = load_dataset
) -> tuple[Dataset, list[Shard]]:
    """The data of a run, and every client's part, with what was made hard to fit for an audit.

    Args:
        typed: The settings of the run.
        keys: Its random streams.
        load: Where the data come from, called as ``load_dataset`` is.
    """
    dataset = load(keys=keys.fold("public"), **typed.data)
    shards = make_shards(dataset, typed.partition, keys.fold("public", "partition"))
    audit = typed.command.audit
    if audit is not None and audit.tail.size:
        victim = _choose_victim(audit, shards)
        shards[victim] = add_hard_examples(
            shards[victim], audit.tail, audit.records, keys.fold("audit", victim)
        )
    return dataset, shards


def digest_data(config: DictConfig) -> str:
    """``Plan.data`` of a run of this config: its data are read, and nothing else is built."""
    typed = typed_settings(config)
    return digest_split(*load_shards(typed, Keys(typed.command.run.seed)))


def _noise_settings_hash(run: RunSettings, audit: AuditSettings | None) -> str:
    """All that decides what clients send, the records left out for the audit among it."""
    if audit is None:
        return settings_hash([run.fingerprint, None])
    if audit.tail.size:
        tail = [dict(hard_example_counts(audit.tail))]
    else:
        tail = []
    return settings_hash([run.fingerprint, [audit.client, audit.records, *tail]])


def _require_role(made: Any, role: type[Role], key: str) -> Role:
    """``made``, if its class inherits from ``role``. Raises BadConfig otherwise."""
    if not isinstance(made, role):
        name = role.__name__
        raise BadConfig(f"{key}: {type(made).__name__} must inherit from privdd.api.{name}")
    return made


def _check_device(device: str, method: Method, engine: Engine) -> None:
    """Raises BadConfig where there is no GPU, nothing of the method would run on it, several
    processes would share it, or it was told to work in a way that changes bits."""
    import torch

    from privdd.core.device import CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACES

    if device == "cpu":
        return
    if not method.audit_hooks.on_gpu:
        raise BadConfig(
            f"device={device}: {type(method).__name__} computes on the CPU alone; leave device=cpu"
        )
    if not torch.cuda.is_available():
        raise BadConfig(f"device={device}: no GPU is present; must be cpu")
    if engine.kind not in IN_THIS_PROCESS:
        raise BadConfig(
            f"device={device}: engine={engine.kind} would have several processes share "
            "one GPU; take engine=serial, and for "
            "each further GPU a run of its own with CUDA_VISIBLE_DEVICES"
        )
    size = os.environ.get(CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACES[0])
    if size not in DETERMINISTIC_WORKSPACES:
        raise BadConfig(
            f"device={device}: with {CUBLAS_WORKSPACE}={size} a GPU gives other bits each "
            f"time; allowed are {' and '.join(DETERMINISTIC_WORKSPACES)}, or unset it"
        )


def _choose_victim(audit: AuditSettings | None, shards: Sequence[Shard]) -> int:
    if audit is None or audit.client == "auto":
        return max(range(len(shards)), key=lambda k: len(shards[k].train))
    return int(audit.client)


def apply_trust_model(plan: Plan, trust: Trust) -> Plan:
    """The plan under a trust model, whole noise still. Raises BadConfig for a method whose uploads
    do not add up."""
    if trust.is_summed and plan.method.aggregation_kind(plan.mechanisms) is None:
        raise BadConfig(
            f"trust={trust.name}: what {type(plan.method).__name__} sends under these "
            "settings does not add up, so no server could "
            "do with the sum alone; allowed is trust=local (FedAvg adds up with "
            "algo.weighting=uniform, or privacy=client)"
        )
    if trust.is_summed:
        trust.noise_shares(len(plan.asked_clients(0)))
    return replace(plan, trust=trust)


def _check_victim_participates(plan: Plan) -> None:
    """Raises BadConfig where the audited client never takes part, so that nothing of it could be
    attacked."""
    rounds = plan.method.rounds
    if not any(plan.victim in plan.participants(t) for t in range(rounds)):
        raise BadConfig(
            f"participation={plan.fraction:g}: the audited client {plan.victim} is drawn "
            f"in none of the {rounds} "
            "round(s); take a larger share, more rounds, or another audit.client"
        )


def _build_mechanisms(
    config: DictConfig, method: Method, noise_multiplier: float | None = None
) -> dict[str, Mechanism]:
    node = config.privacy
    if noise_multiplier is not None:
        node = OmegaConf.merge(config, {"privacy": {"noise_multiplier": noise_multiplier}}).privacy
    typed_as = TypeCheck(config).source_key_of
    mechanisms = {}
    for name, part in (node.mechanisms or {}).items():
        place = f"privacy.mechanisms.{name}"
        mechanisms[str(name)] = _require_role(
            instantiate_node(part, place, typed_as),
            Mechanism,  # type: ignore[type-abstract]
            place,
        )
    for name in mechanisms:
        if name not in method.uploads and name not in method.queries:
            names = sorted({*method.uploads, *method.queries})
            raise BadConfig(
                f"privacy={config.privacy.name}: its mechanism {name!r} has no place in "
                f"{type(method).__name__}, "
                f"whose uploads and queries are {', '.join(names)}"
            )
        if mechanisms[name].for_queries and name not in method.queries:
            raise BadConfig(
                f"privacy.mechanisms.{name}: {type(mechanisms[name]).__name__} sums "
                f"contributions of records, and {name!r} is an "
                f"upload of {type(method).__name__}; its queries are "
                f"{', '.join(sorted(method.queries)) or 'none'}"
            )
    return mechanisms


def _calibrate_noise(config: DictConfig, plan: Plan, privacy: PrivacySettings) -> Plan:
    """The noise multiplier for privacy.epsilon, from the plan of releases alone."""
    target = float(privacy.epsilon or 0)
    setting = f"privacy.epsilon={target}"
    method = type(plan.method).__name__
    if not plan.mechanisms:
        raise BadConfig(
            f"{setting}: privacy={privacy.name} sets no mechanism whose noise could be chosen"
        )
    if plan.method.releases_per_round(0, plan.mechanisms) is None:
        raise BadConfig(
            f"{setting}: {method} cannot plan its releases; set privacy.noise_multiplier"
        )

    def event_at_noise(z: float) -> dpa.DpEvent:
        return planned_event(replace(plan, mechanisms=_build_mechanisms(config, plan.method, z)))

    event_at_noise(1.0)  # raises the mechanisms' own errors, which name their own keys
    try:
        z = calibrate(event_at_noise, target, privacy.delta, relation=privacy.relation)
    except ValueError as error:
        raise BadConfig(f"privacy.epsilon={target:g}: {error}") from None
    config.privacy.noise_multiplier = float(z)
    return replace(plan, mechanisms=_build_mechanisms(config, plan.method, float(z)))


def _store_split(config: DictConfig, audit: AuditSettings) -> None:
    """What ``audit.replays`` came to, in the config: whoever attacks the run again has as many."""
    if any(config.audit.get(key) is None for key in SHARED_COUNTS):
        config.audit.replays = audit.replays
        for key in SHARED_COUNTS:
            config.audit[key] = getattr(audit, key)


def planned_event(plan: Plan) -> dpa.DpEvent:
    """The event of the client that releases most often, over all rounds, for one partition cell
    (such as a class)."""
    counts: list[Counter[str]] = [Counter() for _ in range(plan.problem.clients)]
    for t in range(plan.method.rounds):
        for client in plan.participants(t):
            counts[client].update(plan.method.releases_per_round(t, plan.mechanisms) or {})
    busiest = max(counts, key=Counter.total)
    events = [
        dpa.SelfComposedDpEvent(plan.mechanisms[n].event, c)
        for n, c in busiest.items()
        if n in plan.mechanisms
    ]
    return dpa.ComposedDpEvent(events)


def _warn_of_settings(
    privacy: PrivacySettings, plan: Plan, classes: int, shards: Sequence[Shard]
) -> None:
    """Of a large delta, of too few clients, and where a sum over drawn records is divided by more
    than three times their number, or less than a third of it."""
    records = max(len(s.train) for s in shards)
    if privacy.unit == "record" and plan.mechanisms and privacy.delta * records > 1:
        warnings.warn(
            f"privacy.delta={privacy.delta} is above 1/{records}, one over a client's records",
            stacklevel=3,
        )
    if warning := open_classes_warning(plan, shards):
        warnings.warn(warning, stacklevel=3)
    if warning := too_few_clients_warning(plan):
        warnings.warn(warning, stacklevel=3)
    mean = sum(len(s.train) for s in shards) / len(shards)
    for name, cells in (("dpsgd", 1), ("synthetic_gradient", classes)):
        mechanism = plan.mechanisms.get(name)
        if not isinstance(mechanism, ClippedSum):
            continue
        expected = mechanism.sampling_probability * mean / cells
        if expected > 0 and not 1 / 3 <= mechanism.normaliser / expected <= 3:
            warnings.warn(
                f"privacy.expected_batch={mechanism.normaliser:g}: a step draws {expected:.3g} "
                f"records{' of a class' * (cells > 1)} on average, so "
                f"that it is {expected / mechanism.normaliser:.2g} times as long as the learning "
                f"rate says; set it near {expected:.3g}",
                stacklevel=3,
            )


def open_classes_warning(plan: Plan, shards: Sequence[Shard]) -> str:
    """Of clients that send a mean or sum of each class, without noise, and hold one record of a
    class; "" else."""
    uploads = plan.method.uploads.items()
    names = [
        name
        for name, surface in uploads
        if surface == Surface.PROTOTYPES and name not in plan.mechanisms
    ]
    if not names or set(plan.method.queries) & set(
        plan.mechanisms
    ):  # the means are made of noised answers
        return ""
    alone = {s.client: _classes_of_one_record(s) for s in shards}
    clients = [client for client, classes in alone.items() if classes]
    if not clients:
        return ""
    first = describe_open_classes(alone[clients[0]])
    if len(clients) > 1:
        other_clients = f" (and {len(clients) - 1} more clients)"
    else:
        other_clients = ""
    return (
        f"{', '.join(names)}: of client {clients[0]}{other_clients} {first}: its mean is the "
        "record's own feature"
    )


def _classes_of_one_record(shard: Shard) -> list[int]:
    counts = Counter(shard.train.y.tolist())
    return sorted(int(c) for c, count in counts.items() if count == 1)


def build_shipped_attacks() -> dict[str, Attack]:
    """Every attack that comes with privdd, at its defaults."""
    names = default_attacks([config_dir()])
    return build_attacks(compose_config("audit", [f"attack=[{','.join(names)}]"]))


def build_attacks(config: DictConfig) -> dict[str, Attack]:
    """name -> attack, in a fixed order."""
    nodes = sorted((config.get("attack") or {}).items())
    attacks = {}
    for name, node in nodes:
        place = f"attack.{name}"
        attacks[str(name)] = _require_role(
            instantiate_node(node, place),
            Attack,  # type: ignore[type-abstract]
            place,
        )
    return attacks
