"""The processes that a program runs in: cluster specs, and resolvers that find them."""

from graphdist.cluster.google_cloud import GCEClusterResolver, TPUClusterResolver
from graphdist.cluster.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from graphdist.cluster.resolver import (
    ClusterResolver,
    SimpleClusterResolver,
    UnionResolver,
)
from graphdist.cluster.slurm import SlurmClusterResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.cluster.tf_config import TFConfigClusterResolver

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
