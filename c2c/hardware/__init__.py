"""Chips, links and MIG layouts as data. Values and their sources are in `conf/`."""

from c2c.hardware.conf import (
    bases,
    conf_dir,
    conf_file,
    conf_folders,
    conf_name,
    conf_names,
    read_yaml,
    search_also,
    unknown_file,
)
from c2c.hardware.cutting import Placed, Slice, joined, placed, profiles, slices
from c2c.hardware.machine import memory_bytes
from c2c.hardware.mig import (
    MigConfig,
    MigProfile,
    is_layout_name,
    load_mig,
    mig_from_mapping,
)
from c2c.hardware.node import Node, PeerLink, load_node, node_from_mapping
from c2c.hardware.platform import (
    Gpu,
    Host,
    Link,
    LinkVariant,
    Platform,
    Ranks,
    cpu_platform,
    link_gbps,
    load_platform,
    platform_from_mapping,
    platforms,
    scaled,
)
from c2c.hardware.ranks import collectives_chip, grouped, one_rank
from c2c.hardware.reconfigure import Reconfiguration, reconfiguration

__all__ = [
    "Gpu",
    "Host",
    "Link",
    "LinkVariant",
    "MigConfig",
    "MigProfile",
    "Node",
    "PeerLink",
    "Placed",
    "Platform",
    "Ranks",
    "Reconfiguration",
    "Slice",
    "bases",
    "collectives_chip",
    "conf_dir",
    "conf_file",
    "conf_folders",
    "conf_name",
    "conf_names",
    "cpu_platform",
    "grouped",
    "is_layout_name",
    "joined",
    "link_gbps",
    "load_mig",
    "load_node",
    "load_platform",
    "memory_bytes",
    "mig_from_mapping",
    "node_from_mapping",
    "one_rank",
    "placed",
    "platform_from_mapping",
    "platforms",
    "profiles",
    "read_yaml",
    "reconfiguration",
    "scaled",
    "search_also",
    "slices",
    "unknown_file",
]
