"""What training takes in time: amounts of work that layers state, and how fast a device does each kind of it."""

from betty.lazy_package import offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from betty.cost.measured_speed import measured_speed
    from betty.cost.speed import Speed
    from betty.cost.stored_speed import stored_speed
    from betty.cost.work import Operations, Work
    from betty.cost.work_of import work_of

__all__ = offer(
    __name__,
    {
        "betty.cost.speed": ["Speed"],
        "betty.cost.measured_speed": ["measured_speed"],
        "betty.cost.stored_speed": ["stored_speed"],
        "betty.cost.work": ["Operations", "Work"],
        "betty.cost.work_of": ["work_of"],
    },
)
