"""The reports of a sweep: `report.json`, `report.html` and `junit.xml`.

A `SweepResult` flows in (`result.py`), with its findings; texts flow out: `result.facts(findings)`,
`junit.document(result, findings)` and `html_page.page(result, findings)`.
"""
