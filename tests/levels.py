"""The level of every test, by its file: ``pytest -m unit`` runs those of one level.

unit       functions and small objects; the whole level ends in less than a minute on two cores
component  one package with its real parts: compiled kernels, exact accountants, protocols of an exchange
engine     whole runs in this process, and attacks on them
process    real processes: commands, browsers, federations
slow       minutes, or real data; marked one by one, whatever the file
"""

from __future__ import annotations

from pathlib import PurePosixPath

# A folder or file below tests/; the longest entry that a test's file is in decides.
LEVELS = {
    ".": "unit",
    "audit": "engine",
    "crypto": "unit",
    "data": "unit",
    "engine": "engine",
    "examples": "engine",
    "exchange": "component",
    "families": "component",
    "federation": "process",
    "federation/test_accepted_models.py": "component",
    "federation/test_kits.py": "component",
    "federation/test_ledgers.py": "component",
    "federation/test_policy.py": "component",
    "federation/test_shard.py": "component",
    "kernels": "component",
    "methods": "engine",
    "methods/test_promises.py": "component",
    "methods/test_refusals.py": "unit",
    "models": "unit",
    "models/test_adapters.py": "engine",
    "models/test_models.py": "component",
    "models/test_hugging_face.py": "engine",
    "models/test_multilabel.py": "engine",
    "models/test_own_modules.py": "engine",
    "models/test_packed.py": "component",
    "models/test_rewriting.py": "component",
    "models/test_tasks.py": "component",
    "neighbours": "engine",
    "privacy": "unit",
    "privacy/test_account.py": "component",
    "privacy/test_gaussian_mixture.py": "component",
    "privacy/test_private_selection.py": "component",
    "privacy/test_properties.py": "component",
    "privacy/test_sampled.py": "component",
    "privacy/test_serverless.py": "component",
    "privacy/test_shuffled_protocols.py": "component",
    "report": "component",
    "report/test_report_browser.py": "process",
    "research": "component",
    "stability": "engine",
    "studies": "component",
    "studies/test_study_runs.py": "process",
    "test_cli.py": "process",
    "test_completion.py": "process",
    "test_contributing.py": "process",
    "test_devices.py": "process",
    "test_estimators.py": "engine",
    "test_first_results.py": "engine",
    "test_init.py": "process",
    "test_ledger_backup.py": "component",
    "test_ledger_check.py": "component",
    "test_mlflow.py": "process",
    "test_names.py": "component",
    "test_notebook.py": "process",
    "test_processes.py": "process",
    "test_python_page.py": "engine",
    "test_tutorials.py": "process",
    "test_verdict.py": "engine",
    "transport": "component",
    "transport/test_attendant.py": "process",
    "transport/test_client.py": "process",
}


def level_of(file: PurePosixPath) -> str | None:
    """The level of a file, given from tests/; None where its folder has no level."""
    if file.parent == PurePosixPath("."):
        return LEVELS.get(str(file), LEVELS["."])
    places = (str(place) for place in (file, *file.parents[:-1]))
    return next((LEVELS[place] for place in places if place in LEVELS), None)
