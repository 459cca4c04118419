"""The rows of docs/components.md: each component of another library that is checked, as it is
configured there."""

from __future__ import annotations

from privdd.integrations.components import ComponentRow, local_dp_arguments

# seconds of processor time, for components that are slow or need many calls
MIDDLE = 20
LONG = 30
LONGEST = 40
MOST = 60
STRATEGY = "flwr.serverapp.strategy:DifferentialPrivacy"
LOCAL = "flwr.clientapp.mod:LocalDpMod"
ENGINE = "opacus:PrivacyEngine"
ACCOUNTING = "dp_accounting."
PFL = "pfl.privacy."
JAX = "jax_privacy."
NVFLARE = "nvflare.app_common."
TOOLS = "diffprivlib.tools:"
PYDP = "pydp.algorithms.laplacian:"
CROWD = (
    "args.noise_multiplier=1",
    "args.clipping_norm=1",
    "input.clients=3",
    "input.shapes=[[20]]",
)
ADAPTIVE = (
    "args.noise_multiplier=0.5",
    "args.clipped_count_stddev=1",
    "input.clients=3",
    "input.shapes=[[20]]",
)
SMALL = ("args.noise_multiplier=1", "input.rows=[40,50]")  # 40 records in batches of 2
# one batch
WHOLE = (
    "args.noise_multiplier=1",
    "args.loss_reduction=sum",
    "args.batch_size=64",
    "input.rows=[8,6]",
)
EPOCH = (
    "args.noise_multiplier=1",
    "args.loss_reduction=sum",
    "args.poisson_sampling=false",
    "args.steps=0",
    "args.batch_size=1",
    "args.records=10",
    "relation=zero_out",
    "input.rows=[10,4]",
)
COLUMN = ("args.epsilon=1", "args.bounds=[0,1]", "input.rows=[20,1]")
NONE_STATED = ("stated.epsilon=5", "stated.delta=1e-5")  # put to a component that states none
CLASSIC = (
    "its noise is sqrt(2 ln(1.25 / delta)) / epsilon, which is proven for epsilon below 1 "
    "only; at delta 1e-5 it falls short from 8.4 on"
)
WEIGHTS = (
    "the server weighs clients by the counts they state (num-examples), and the noise is "
    "sized for equal "
    "weights: one client may be nearly the whole mean; with its accountant Flower "
    "refuses such weights"
)
DIVISOR = (
    "the noise is divided by int(records x rate), which is 2 with 40 records and 1 with 39; "
    "a public number of records "
    "makes this harmless"
)
SHUFFLED = (
    "the engine accounts for Poisson batches of this rate, and here each record is in one "
    "batch of every epoch for certain"
)
ROWS = (
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1, epsilon 8",
        local_dp_arguments("8"),
        MIDDLE,
    ),
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1, epsilon 10",
        local_dp_arguments("10"),
        reason=CLASSIC,
    ),
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1, epsilon 20",
        local_dp_arguments("20"),
        reason=CLASSIC,
    ),
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1e-4, epsilon 10",
        local_dp_arguments("10", "1e-4"),
        reason="the noise is for the sensitivity that is given, which nothing holds against the "
        "clip of 1",
    ),
    ComponentRow(
        f"{STRATEGY}ServerSideFixedClipping",
        "Server-side fixed clipping over FedAvg, start()",
        "3 clients, any weights",
        CROWD,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        f"{STRATEGY}ServerSideFixedClipping",
        "the same with Flower's RdpAccountant",
        "3 clients, which must have equal weights",
        (
            "args.noise_multiplier=1",
            "args.clipping_norm=1",
            "args.accountant=true",
            "args.clients=3",
            "input.clients=3",
            "input.shapes=[[20]]",
        ),
        MOST,
    ),
    ComponentRow(
        f"{STRATEGY}ClientSideFixedClipping",
        "Client-side fixed clipping with its mod, start()",
        "3 clients, any weights",
        CROWD,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        f"{STRATEGY}ServerSideAdaptiveClipping",
        "Server-side adaptive clipping over FedAvg, start()",
        "3 clients, any weights",
        ADAPTIVE,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        f"{STRATEGY}ClientSideAdaptiveClipping",
        "Client-side adaptive clipping with its mod, start()",
        "3 clients, any weights",
        ADAPTIVE,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        ENGINE,
        "make_private, as it comes (PRV accountant)",
        "40 records, batches of 2, one step",
        SMALL,
        LONG,
        reason=DIVISOR,
    ),
    ComponentRow(
        ENGINE,
        "make_private",
        "loss_reduction=sum, 40 records, batches of 2, one step",
        (*SMALL, "args.loss_reduction=sum"),
        MOST,
    ),
    ComponentRow(
        ENGINE, "make_private", "loss_reduction=sum, all records in the batch", WHOLE, MOST
    ),
    ComponentRow(
        ENGINE,
        "make_private, per-layer clipping",
        "three layers, clip 1 each, sum, all records",
        (*WHOLE, "args.clipping=per_layer", "args.layers=3", "args.max_grad_norm=[1,1,1]"),
        MOST,
    ),
    ComponentRow(
        ENGINE,
        "make_private, ghost clipping",
        "sum, all records",
        (*WHOLE, "args.grad_sample_mode=ghost"),
        MOST,
    ),
    ComponentRow(
        ENGINE,
        "make_private, poisson_sampling=False",
        "shuffled loader, an epoch of 10 batches, sum",
        (*EPOCH, "args.shuffle=true"),
        LONG,
        reason=SHUFFLED,
    ),
    ComponentRow(
        f"{ACCOUNTING}pld:PLDAccountant",
        "PLDAccountant, REPLACE_ONE",
        "with make_private, sum, all records",
        ("args.noise_multiplier=2", "args.relation=REPLACE_ONE", "input.rows=[8,6]"),
        MOST,
    ),
    ComponentRow(
        f"{ACCOUNTING}rdp:RdpAccountant",
        "RdpAccountant, REPLACE_ONE",
        "with make_private, sum, all records",
        ("args.noise_multiplier=2", "args.relation=REPLACE_ONE", "input.rows=[8,6]"),
        LONG,
        reason="it reads the multiplier as noise over the norm of a record, as GaussianDpEvent "
        "does, though replacing a record shifts the sum by up to twice that norm; the "
        "PLD accountant doubles it",
    ),
    ComponentRow(
        f"{JAX}experimental.execution_plan:BandMFExecutionPlanConfig",
        "execution plan: sampler, clipped gradient, noise",
        "one step, rate 0.5, its zero-out relation",
        ("args.noise_multiplier=1", "args.sampling_prob=0.5", "input.rows=[20,6]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{JAX}clipping:clipped_fun",
        "clipped_fun with matrix_factorization_privatizer",
        "clip 1, independent noise, one sum",
        ("args.noise_multiplier=1", "input.rows=[20,6]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{PFL}gaussian_mechanism:GaussianMechanism",
        "GaussianMechanism.privatize",
        "clip 1, the update alone",
        ("args.epsilon=2",),
    ),
    ComponentRow(
        f"{PFL}gaussian_mechanism:GaussianMechanism",
        "GaussianMechanism.privatize",
        "the same, and the metrics that come with it",
        ("args.epsilon=2", "args.with_metrics=true"),
        reason="the norm before the clip is among them, without noise; they must stay with the "
        "user",
    ),
    ComponentRow(
        f"{PFL}gaussian_mechanism:GaussianMechanism",
        "GaussianMechanism from PLDPrivacyAccountant, central",
        "3 users of weight 1",
        ("args.epsilon=2", "args.accountant=true", "input.clients=3", "input.shapes=[[20]]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{PFL}adaptive_clipping:AdaptiveClippingGaussianMechanism",
        "AdaptiveClippingGaussianMechanism",
        "3 users, one round",
        ("args.epsilon=2", "input.clients=3", "input.shapes=[[20]]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{PFL}laplace_mechanism:LaplaceMechanism",
        "LaplaceMechanism.privatize",
        "clip 1 in L1",
        ("args.epsilon=2",),
    ),
    ComponentRow(
        f"{NVFLARE}filters.svt_privacy:SVTPrivacy",
        "SVTPrivacy",
        "as it comes, 20 numbers",
        ("input.shapes=[[20]]",),
    ),
    ComponentRow(
        f"{NVFLARE}filters.svt_privacy:SVTPrivacy",
        "SVTPrivacy",
        "gamma 1, tau 0.1, epsilon 1 and 1, 20 numbers",
        (
            "args.gamma=1",
            "args.tau=0.1",
            "args.epsilon_release=1",
            "args.epsilon=1",
            "input.shapes=[[20]]",
        ),
    ),
    ComponentRow(
        f"{NVFLARE}filters.percentile_privacy:PercentilePrivacy",
        "PercentilePrivacy",
        "as it comes; it states no epsilon",
        NONE_STATED,
        reason="it clips and drops small numbers, and adds no noise",
    ),
    ComponentRow(
        f"{NVFLARE}statistics.min_max_cleanser:AddNoiseToMinMax",
        "AddNoiseToMinMax",
        "0.1 to 0.3; it states no epsilon",
        ("args.min_noise_level=0.1", "args.max_noise_level=0.3", *NONE_STATED),
        reason="its noise is a share of the value between two bounds: values that differ enough "
        "are never mistaken",
    ),
    ComponentRow(f"{TOOLS}mean", "tools.mean", "bounds 0 and 1, 20 records", COLUMN),
    ComponentRow(f"{TOOLS}var", "tools.var", "bounds 0 and 1, 20 records", COLUMN),
    ComponentRow(f"{TOOLS}median", "tools.median", "bounds 0 and 1, 20 records", COLUMN),
    ComponentRow(
        f"{TOOLS}histogram",
        "tools.histogram",
        "4 bins, range 0 to 1",
        ("args.epsilon=1", "args.bins=4", "args.range=[0,1]", "input.rows=[20,1]"),
    ),
    ComponentRow(
        f"{TOOLS}histogram",
        "tools.histogram",
        "as it comes: no range (it warns)",
        ("args.epsilon=1", "input.rows=[20,1]"),
        reason="the edges of its bins are the smallest and the largest value of the data, as its "
        "warning says",
    ),
    ComponentRow(
        "opendp.measurements:make_laplace",
        "make_laplace on a clamped sum",
        "bounds 0 and 1",
        ("args.epsilon=1", "input.rows=[20,1]"),
    ),
    ComponentRow(
        f"{PYDP}BoundedSum",
        "BoundedSum",
        "bounds 0 and 1",
        ("args.epsilon=1", "args.lower_bound=0", "args.upper_bound=1", "input.rows=[20,1]"),
    ),
    ComponentRow(
        f"{PYDP}BoundedMean",
        "BoundedMean",
        "bounds 0 and 1",
        ("args.epsilon=1", "args.lower_bound=0", "args.upper_bound=1", "input.rows=[20,1]"),
    ),
    ComponentRow(f"{PYDP}Count", "Count", "as it comes", ("args.epsilon=1", "input.rows=[20,1]")),
)
