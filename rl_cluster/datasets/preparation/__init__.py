"""From a published data set to `tasks.parquet`, `corpus.parquet` and `manifest.json`."""
