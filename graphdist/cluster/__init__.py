"""The processes that a program runs in: cluster specs, and resolvers that find them."""

from graphdist.cluster.compute_engine import GCEClusterResolver
from graphdist.cluster.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from graphdist.cluster.resolver import ClusterResolver, SimpleClusterResolver
from graphdist.cluster.slurm import SlurmClusterResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.cluster.tf_config import TFConfigClusterResolver
from graphdist.cluster.tpu import TPUClusterResolver
from graphdist.cluster.union import UnionResolver

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
]
