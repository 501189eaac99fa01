"""The experiment of visits.toml from Python: pandas in, pandas out.

    python examples/table/visits.py               leaves its runs in runs/visits
    python examples/table/visits.py DIR           leaves them in DIR

``make_visits`` stands in for the place where your table comes from.
"""

from __future__ import annotations

import sys
from pathlib import Path

from make_visits import made_visits

import tacit

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    table = made_visits()

    plan = tacit.plan(HERE / "visits.toml")
    for guarantee in plan.guarantees():
        print(f"{guarantee.unit} from {guarantee.view}: epsilon = {guarantee.epsilon}")

    joined = tacit.run(plan, frame=table, baselines=True, out=folder / "fedavg")
    print("metrics", joined.metrics)
    print(joined.history().tail(3))

    # the same experiment with another server step
    adam = tacit.plan(HERE / "visits.toml", ["train.server_optimizer=adam", "train.server_learning_rate=0.03"])
    other = tacit.run(adam, frame=table, out=folder / "fedadam")
    print(tacit.compare([joined, other]).T)

    # new people arrive; the model needs the feature columns, nothing else
    new = made_visits(people=3, seed=1).drop(columns=["person", "clinic", "back_in_a_month"])
    print(new.join(joined.predict(new)))
    print("report", joined.report)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/visits"))
