package decode

import (
	"bytes"
	"encoding/json"
	"errors"
)

// shard is a compressed file that an index of MosaicML Streaming names (mosaicml/streaming, base/format). It is an MDS
// shard, or the data or the offsets of one in JSON or CSV.
type shard struct {
	compression string
	raw, zip    fileInfo
}

// fileInfo is an index's entry of a file.
type fileInfo struct {
	Basename string            `json:"basename"`
	Bytes    int64             `json:"bytes"`
	Hashes   map[string]string `json:"hashes"`
}

var (
	errIndex = errors.New("it is no index of shards")
	errMany  = errors.New("it names more shards than there are files")
)

// rewriteIndex takes compression out of an index and lists the compressed shards. Keys that it does not know stay as they
// are. Besides the text it has one entry in memory, and at most so many shards. A text may have more empty entries than
// fit into memory.
func rewriteIndex(text []byte, most int) (out []byte, shards []shard, err error) {
	if !bytes.Contains(text, []byte(`"zip_data"`)) {
		return nil, nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, nil, errIndex
	}
	out = append(make([]byte, 0, len(text)), '{')
	for first := true; dec.More(); first = false {
		tok, err := dec.Token()
		key, ok := tok.(string)
		if err != nil || !ok {
			return nil, nil, errIndex
		}
		if !first {
			out = append(out, ',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, nil, err
		}
		out = append(append(out, name...), ':')
		if key == "shards" {
			out, shards, err = rewriteShards(dec, out, shards, most)
		} else {
			var value json.RawMessage
			err = dec.Decode(&value)
			out = append(out, value...)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if _, err := dec.Token(); err != nil || len(bytes.TrimSpace(text[dec.InputOffset():])) > 0 {
		return nil, nil, errIndex
	}
	return append(out, '}'), shards, nil
}

func rewriteShards(dec *json.Decoder, out []byte, shards []shard, most int) ([]byte, []shard, error) {
	if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
		return nil, nil, errIndex
	}
	out = append(out, '[')
	for first := true; dec.More(); first = false {
		var entry map[string]json.RawMessage
		if err := dec.Decode(&entry); err != nil {
			return nil, nil, err
		}
		found, err := rewriteEntry(entry)
		if err != nil {
			return nil, nil, err
		}
		text, err := json.Marshal(entry)
		if err != nil {
			return nil, nil, err
		}
		if !first {
			out = append(out, ',')
		}
		if out, shards = append(out, text...), append(shards, found...); len(shards) > most {
			return nil, nil, errMany
		}
	}
	_, err := dec.Token()
	return append(out, ']'), shards, err
}

// rewriteEntry takes compression out of an entry.
func rewriteEntry(entry map[string]json.RawMessage) (shards []shard, err error) {
	const null = "null"
	for _, part := range []string{"data", "meta"} {
		coded, ok := entry["zip_"+part]
		if !ok || string(coded) == null {
			continue
		}
		var s shard
		for _, field := range []struct {
			key string
			to  any
		}{{"raw_" + part, &s.raw}, {"zip_" + part, &s.zip}, {"compression", &s.compression}} {
			if err := json.Unmarshal(entry[field.key], field.to); err != nil {
				return nil, err
			}
		}
		shards = append(shards, s)
		entry["zip_"+part] = json.RawMessage(null)
	}
	if len(shards) > 0 {
		entry["compression"] = json.RawMessage(null)
	}
	return shards, nil
}
