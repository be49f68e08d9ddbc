package layout

import (
	"context"
	"fmt"
	"strings"
)

// format recognizes one family of files. Recognition has two steps. probe sees one object's head, alone; it is called
// from several goroutines, keeps nothing of head, and returns what it learnt or nil. assemble then gets those objects
// of one directory that this format's probe was the first to accept, forms sets of them with [directory.add], and
// reports what does not fit with [directory.problem].
type format struct {
	name     string
	about    string // one line for people
	probe    func(o *Object, head []byte) any
	assemble func(ctx context.Context, d *directory, members []member)
}

// allFormats returns the formats, those with the strongest evidence first: a magic number, then an index that names
// its shards, then headerless tokens, which only look like what they are. What none recognizes is raw.
func allFormats() []format {
	return []format{
		safetensorsFormat(),
		arrowFormat(),
		webdatasetFormat(),
		npyFormat(),
		megatronFormat(),
		llmcFormat(),
		mdsFormat(),
		litdataFormat(),
		datatroveFormat(),
		olmoFormat(),
		tokensFormat(),
	}
}

// Formats returns the names of all formats with a line about each, in the order in which they are tried.
func Formats() (names, about []string) {
	for _, f := range allFormats() {
		names, about = append(names, f.name), append(about, f.about)
	}
	return append(names, "raw"), append(about, "anything else: files as they are, no views")
}

func selectFormats(opt Options) ([]format, error) {
	all := allFormats()
	if opt.Format == "" || opt.Format == "raw" {
		if opt.Format == "raw" {
			all = nil
		}
		return all, nil
	}
	for _, f := range all {
		if f.name == opt.Format {
			return []format{f}, nil
		}
	}
	names, _ := Formats()
	return nil, fmt.Errorf("format %q is not known: use one of %s", opt.Format, strings.Join(names, ", "))
}
