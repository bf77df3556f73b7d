"""What edges of a DGL graph carry: Betty's have neither weights nor features nor types, and none is dropped unseen."""

from __future__ import annotations

import logging

from betty.dgl_compat import dgl
from betty.errors import BettyError

logger = logging.getLogger(__name__)


def require_dgl(graph: object) -> None:
    """Refuse what is no graph of DGL's.

    Raises:
        BettyError: naming what it is.
    """
    if not isinstance(graph, dgl.DGLGraph):
        advice = (
            "give its field graph"
            if hasattr(graph, "train_ids")
            else "make it one by dgl.graph((sources, destinations))"
        )
        raise BettyError(f"the graph is a {type(graph).__name__} and no dgl.DGLGraph; {advice}")


def require_plain_edges(graph: dgl.DGLGraph) -> None:
    """Refuse a graph whose edges carry more than their ends; warn where parallel edges have ids, which get lost.

    Args:
        graph: of one edge type.

    Raises:
        BettyError: it has data on its edges, or edges of several types that were made one.
    """
    names = [name for name in graph.edata if name not in (dgl.EID, dgl.ETYPE)]
    if names:
        raise BettyError(
            f"the graph has data on its edges ({', '.join(names)}), which have neither weights nor features in Betty; "
            f"take it away by graph.edata.pop({names[0]!r}), and all edges count the same"
        )
    if dgl.ETYPE in graph.edata and graph.edata[dgl.ETYPE].unique().numel() > 1:
        raise BettyError(
            "the graph's edges are of several types, which Betty does not tell apart; "
            f"take the types away by graph.edata.pop({dgl.ETYPE!r}), and all edges count the same"
        )
    if dgl.EID in graph.edata and graph.is_multigraph:
        logger.warning(
            "the graph has parallel edges with ids (edata[%r]); the edges are kept, which of them has which id is not",
            dgl.EID,
        )
