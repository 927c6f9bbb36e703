"""`acmserve bench speculation`: exact answers behind a fold that are drafted on moved KV, beside those that are not."""
