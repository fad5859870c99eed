# The stream {stream} at {url} {expects}.
# Random rows stand in for the features of your pictures here.
row=$(python3 -c 'import random; v = [random.gauss(0, 1) for _ in range({dim})]; n = sum(x * x for x in v) ** .5; print([x / n for x in v])')

# Answer a row. `predict` learns nothing from it: random rows must not teach a live stream
curl -s {url}/v1/streams/{stream}/predict -H "authorization: Bearer $ULTTA_TOKEN" \
  -H 'content-type: application/json' -d "{\"features\": [$row], \"top\": 3}"

# With rows of your pictures: `classify` answers and learns; `id` in its answers is for feedback
# curl -s {url}/v1/streams/{stream}/classify -H "authorization: Bearer $ULTTA_TOKEN" \
#   -H 'content-type: application/octet-stream' --data-binary @features.npy

# A label that became known later; id and generation are those of the answer
# curl -s {url}/v1/streams/{stream}/feedback -H "authorization: Bearer $ULTTA_TOKEN" \
#   -H 'content-type: application/json' -d '{"labels": [{"id": 0, "label": 1}], "generation": 0}'
