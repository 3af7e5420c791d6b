"""Models, prompts and measurements: what a comparison of pipelines is run on."""

__all__: list[str] = []
