"""One GraphSAGE layer on a block's own tensors."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn, zeros

from betty.blocks import Block
from betty.cost.work import Operations, Work
from betty.memory.tape import Held, Tape
from betty.models.aggregators import make_aggregator
from betty.models.linear import Linear
from betty.models.neighbour_reduction import destination_rows, destination_rows_memory, destination_rows_work


class SAGEConv(nn.Module):
    """A GraphSAGE layer: ``W_self · own features + W_neigh · aggregated neighbours + bias``.

    Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017, algorithm 1. The names and
    shapes of its weights, their initial distribution and its result are those of ``dgl.nn.SAGEConv``.

    Args:
        in_feats: channels of a source node.
        out_feats: channels of the result.
        aggregator: a name in :data:`betty.models.AGGREGATORS`.
        residual: whether to add the destination's own features, projected unless they have the result's width.

    Raises:
        BettyError: there is no such aggregator.
    """

    def __init__(self, in_feats: int, out_feats: int, aggregator: str, residual: bool = False) -> None:
        super().__init__()
        self.in_feats = in_feats
        self.out_feats = out_feats
        self.aggregate = make_aggregator(aggregator)
        for name, layer in self.aggregate.make_layers(in_feats).items():
            self.add_module(name, layer)
        self.fc_neigh = Linear(in_feats, out_feats, bias=False)
        if self.aggregate.includes_self:
            self.bias = nn.Parameter(zeros(out_feats))
        else:
            self.fc_self = Linear(in_feats, out_feats)
        self.residual = residual
        projects = residual and in_feats != out_feats
        self.res_fc = Linear(in_feats, out_feats, bias=False) if projects else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights of the linear layers from Glorot's uniform distribution for ReLU, as DGL does."""
        gain = nn.init.calculate_gain("relu")
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, gain=gain)

    @property
    def projects_first(self) -> bool:
        """Whether features are projected before they are aggregated: where that leaves fewer channels to aggregate."""
        return self.aggregate.is_linear and self.in_feats > self.out_feats

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Compute the layer.

        Args:
            block: of any shape, on the device of ``x``.
            x: floating ``[num_src, in_feats]``, the features of the block's sources.

        Returns:
            ``[num_dst, out_feats]``.
        """
        if self.projects_first:
            neighbours = self.aggregate(self, block, self.fc_neigh(x))
        else:
            neighbours = self.fc_neigh(self.aggregate(self, block, x))
        own = destination_rows(block, x)
        result = neighbours + self.bias if self.aggregate.includes_self else self.fc_self(own).add_(neighbours)
        if not self.residual:
            return result
        return result.add_(own if self.res_fc is None else self.res_fc(own))

    @contextmanager
    def memory(self, tape: Tape, block: Block, x: Held, needs_gradient: bool) -> Iterator[Held]:
        """What the layer takes, see :class:`~betty.memory.tape.Tape`."""
        with self._neighbours_memory(tape, block, x, needs_gradient) as neighbours:
            with self._own_memory(tape, block, x, needs_gradient) as result:
                tape.free(neighbours)
                yield result
                of_neighbours = tape.share(tape.gradient)
            of_own = destination_rows_memory(tape, tape.gradient, block.num_dst)
            tape.gradient = of_neighbours
        tape.free(*of_own)

    @contextmanager
    def _own_memory(self, tape: Tape, block: Block, x: Held, needs_gradient: bool) -> Iterator[Held]:
        """All that is made of the destinations' own features, whose gradient there is at the end."""
        of_residual = None
        with self._self_memory(tape, block, x, needs_gradient) as result:
            if not self.residual:
                yield result
            elif self.res_fc is None:
                yield result
                of_residual = tape.share(tape.gradient) if needs_gradient else None
            else:
                with self.res_fc.memory(tape, x, block.num_dst, needs_gradient) as projected:
                    tape.free(projected)
                    yield result
                    of_result = tape.share(tape.gradient)
                of_residual, tape.gradient = tape.gradient, of_result
        if tape.gradient is None:
            tape.gradient = of_residual
        elif of_residual is not None:
            if self.res_fc is None:
                tape.replace_gradient(block.num_dst, self.in_feats)
            tape.free(of_residual)

    @contextmanager
    def _self_memory(self, tape: Tape, block: Block, x: Held, needs_gradient: bool) -> Iterator[Held]:
        if not self.aggregate.includes_self:
            with self.fc_self.memory(tape, x, block.num_dst, needs_gradient) as result:
                yield result
            return
        yield tape.allocate("hidden", block.num_dst, self.out_feats)
        tape.add_gradient(self.out_feats)
        tape.free(tape.gradient)
        tape.gradient = None

    @contextmanager
    def _neighbours_memory(self, tape: Tape, block: Block, x: Held, needs_gradient: bool) -> Iterator[Held]:
        if self.projects_first:
            with (
                self.fc_neigh.memory(tape, x, block.num_src, needs_gradient, kind="aggregator") as projected,
                self.aggregate.memory(self, tape, block, projected, self.out_feats, True) as neighbours,
            ):
                tape.free(projected)
                yield neighbours
        else:
            of_aggregated = needs_gradient or self.aggregate.has_weights
            with self.aggregate.memory(self, tape, block, x, self.in_feats, needs_gradient) as aggregated:
                with self.fc_neigh.memory(tape, aggregated, block.num_dst, of_aggregated) as neighbours:
                    tape.free(aggregated)
                    yield neighbours
                # Two sparse gradients are joined before they are added to that from the neighbours.
                are_joined = self.residual and self.aggregate.includes_self and needs_gradient
                joined = tape.allocate("backward", block.num_dst * are_joined, self.in_feats)
            tape.free(joined)

    def work(self, block: Block, needs_gradient: bool) -> Work:
        """What the layer computes, from the block's degrees and numbers of nodes."""
        added = Work(Operations(call=1, stream=2 * block.num_dst * self.out_feats))
        work = self._neighbours_work(block, needs_gradient) + added
        if not self.aggregate.includes_self:
            own = destination_rows_work(block.num_dst, self.in_feats, needs_gradient)
            work += own + self.fc_self.work(block.num_dst, needs_gradient)
        if self.residual:
            work += added
        if self.res_fc is not None:
            work += self.res_fc.work(block.num_dst, needs_gradient)
        return work

    def _neighbours_work(self, block: Block, needs_gradient: bool) -> Work:
        if self.projects_first:
            projected = self.fc_neigh.work(block.num_src, needs_gradient)
            return projected + self.aggregate.work(self, block, self.out_feats, True)
        of_aggregated = needs_gradient or self.aggregate.has_weights
        aggregated = self.aggregate.work(self, block, self.in_feats, needs_gradient)
        return aggregated + self.fc_neigh.work(block.num_dst, of_aggregated)

    def extra_repr(self) -> str:
        return f"{self.in_feats}, {self.out_feats}, aggregator={type(self.aggregate).__name__.lower()}"
