"""Looking inside a model: what its layers hold, where its heads look, what is lost without them, how its gradients go.

`record`, `attention_maps` and `ablate` are `with` blocks around any call of a model; `logit_lens`, `probe`, `neuron` and
`ablation_effects` read what such blocks show; `identity_path` and `gradient_paths` look at the ways through its Residuals. All
results have `plot(path)`.
"""

from .ablation import Effects, ablate, ablation_effects
from .activations import Activations, record
from .attention import AttentionMaps, attention_maps
from .identity import Certificate, ResidualIdentity, identity_path
from .lens import LogitLens, logit_lens
from .neurons import Neuron, neuron
from .paths import GradientPaths, PathSplit, draw_paths, gradient_paths
from .probes import Probe, Probes, probe, probe_layers

__all__ = [
    "Activations",
    "AttentionMaps",
    "Certificate",
    "Effects",
    "GradientPaths",
    "LogitLens",
    "Neuron",
    "PathSplit",
    "Probe",
    "Probes",
    "ResidualIdentity",
    "ablate",
    "ablation_effects",
    "attention_maps",
    "draw_paths",
    "gradient_paths",
    "identity_path",
    "logit_lens",
    "neuron",
    "probe",
    "probe_layers",
    "record",
]
