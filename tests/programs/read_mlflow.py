"""Prints what an MLflow server has of an experiment, as JSON.

usage: read_mlflow.py URI EXPERIMENT
"""

import json
import sys

from mlflow.tracking import MlflowClient


def main():
    client = MlflowClient(tracking_uri=sys.argv[1])
    experiment = client.get_experiment_by_name(sys.argv[2])
    runs = []
    for run in client.search_runs([experiment.experiment_id]):
        tree = [file.path for file in client.list_artifacts(run.info.run_id, "torchspy")]
        runs.append(
            {
                "id": run.info.run_id,
                "name": run.info.run_name,
                "status": run.info.status,
                "parent": run.data.tags.get("mlflow.parentRunId"),
                "params": run.data.params,
                "metrics": {
                    key: [[point.step, point.timestamp, point.value] for point in client.get_metric_history(run.info.run_id, key)]
                    for key in run.data.metrics
                },
                "seconds": (run.info.end_time - run.info.start_time) / 1000,
                "artifacts": {path: len(open(client.download_artifacts(run.info.run_id, path), "rb").read()) for path in tree},
            }
        )
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
