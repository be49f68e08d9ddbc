package pack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/internal/pack/corpus"
	"github.com/hbmfs/hbmfs/layout"
)

// stateName is the file in the output directory that says how far a run has come. It is there as long as the run is,
// and after one that was killed.
const stateName = ".hbmfs-pack-state.json"

// stateVersion is another one when a program of today cannot go on with a state of yesterday.
const stateVersion = 1

// state is all that a run needs to go on: between two documents, its files flushed and synced.
type state struct {
	Version int             `json:"hbmfs_pack_state"`
	Options []setting       `json:"options"`
	Inputs  string          `json:"inputs"` // a digest of the files' names, sizes and versions
	At      corpus.Position `json:"at"`
	Read    int64           `json:"read"`
	Seconds float64         `json:"seconds"` // that earlier runs took

	Seen    int64        `json:"seen"`
	Result  Result       `json:"result"`
	Streams []splitState `json:"streams"`
	MDS     *mdsIndex    `json:"mds,omitempty"`
	Dropped int64        `json:"dropped"`
	Prefix  string       `json:"prefix"` // of the names of all temporary files
	Done    []fileState  `json:"done"`
}

// setting is an option that decides about the bytes.
type setting struct{ Name, Value string }

// splitState is a stream between two documents.
type splitState struct {
	Index int         `json:"index"`
	InCur int64       `json:"in_cur"`
	Shard *shardState `json:"shard,omitempty"`
}

// shardState is a shard between two documents.
type shardState struct {
	Files     []fileState `json:"files"`
	Ends      []uint32    `json:"ends,omitempty"` // of an MDS shard
	FirstHead int64       `json:"first_head,omitempty"`
}

// fileState is a file under its temporary name.
type fileState struct {
	Temp string              `json:"temp"`
	Size int64               `json:"size"`
	Sums layout.ManifestFile `json:"sums"` // complete only where the file is
}

// settings are the options that decide about the bytes.
func (p *plan) settings() []setting {
	o := &p.Options
	tokens := ""
	if p.tokenizer != nil {
		tokens = strings.TrimSpace(p.tokenizer.Name() + " " + p.tokenizer.SHA256())
	}
	part := ""
	if o.Part.Of > 0 {
		part = o.Part.String()
	}
	return []setting{
		{"--to", p.Format}, {"--dtype", p.dtype.String()}, {"--tokenizer", tokens}, {"--eot", fmt.Sprint(p.eot)},
		{"--from", o.From}, {"--text-key", o.TextKey}, {"--include", strings.Join(o.Include, " ")},
		{"--shard-tokens", fmt.Sprint(p.limit)}, {"--sample-tokens", fmt.Sprint(o.SampleTokens)},
		{"--val-fraction", fmt.Sprint(o.ValFraction)}, {"--name", p.Name},
		{"--bos", fmt.Sprint(p.bos)}, {"--special-text", fmt.Sprint(o.SpecialText)}, {"--part", part},
	}
}

// inputs is a digest of the files. Without versions it is the same on every machine that has them.
func (in *input) inputs(versions bool) string {
	if in.corpus == nil {
		return ""
	}
	h := sha256.New()
	for _, f := range in.corpus.Files {
		fmt.Fprintf(h, "%q %d", f.Rel, f.Size)
		if versions {
			fmt.Fprintf(h, " %q", f.Version)
		}
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// matches says why a run cannot go on with s, or nothing.
func (s *state) matches(options []setting, inputs string) string {
	if s.Version != stateVersion {
		return "another version of hbmfs wrote it"
	}
	for i, o := range options {
		if i >= len(s.Options) || s.Options[i].Name != o.Name {
			return "another version of hbmfs wrote it"
		}
		if was := s.Options[i].Value; was != o.Value {
			return fmt.Sprintf("%s was %q then, and is %q now", o.Name, was, o.Value)
		}
	}
	if s.Inputs != inputs {
		return "the sources are others, or have changed since"
	}
	return ""
}

// readState returns the state in a directory, or nil.
func readState(dir string) (*state, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of the interrupted pack: %w", err)
	}
	s := &state{}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(s); err != nil || !strings.HasPrefix(s.Prefix, tempPrefix) || filepath.Base(s.Prefix) != s.Prefix {
		return nil, fmt.Errorf("the state of an interrupted pack in %s cannot be read: use --restart to begin anew", dir)
	}
	return s, nil
}

// save makes the bytes written so far last, and then says so in the state file.
func (w *writer) save() error {
	s := &state{
		Version: stateVersion, Options: w.settings, Inputs: w.inputs, At: w.at, Read: w.read, Seen: w.seen, Result: w.result,
		Seconds: w.before + time.Since(w.began).Seconds(), MDS: &w.mds, Dropped: w.mds.dropped, Prefix: w.out.prefix,
	}
	for _, split := range []*stream{w.train, w.val} {
		of := splitState{Index: split.index, InCur: split.inCur}
		if split.cur != nil {
			shard, err := split.cur.save()
			if err != nil {
				return err
			}
			of.Shard = shard
		}
		s.Streams = append(s.Streams, of)
	}
	for _, f := range w.out.done {
		s.Done = append(s.Done, fileState{filepath.Base(f.f.Name()), f.size, f.sums})
	}
	return w.out.saveState(s)
}

// saveState writes the state file.
func (o *output) saveState(s *state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	name := filepath.Join(o.dir, o.prefix+"state.tmp")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(name, filepath.Join(o.dir, stateName))
	}
	if err == nil {
		err = syncDir(o.dir)
	}
	if err != nil {
		os.Remove(name) //nolint:errcheck // the user needs the first error
		return fmt.Errorf("save the state: %w", err)
	}
	o.saved = true
	o.empty()
	return nil
}

// sync makes the bytes written so far last.
func (f *outFile) sync() error {
	if err := f.w.Flush(); err != nil {
		return fmt.Errorf("write %q: %w", f.sums.Name, err)
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("sync %q: %w", f.sums.Name, err)
	}
	return nil
}

// saveFiles syncs files and says where they are.
func saveFiles(files ...*outFile) ([]fileState, error) {
	var out []fileState
	for _, f := range files {
		if err := f.sync(); err != nil {
			return nil, err
		}
		out = append(out, fileState{filepath.Base(f.f.Name()), f.size, f.sums})
	}
	return out, nil
}

// restore opens the files of a shard again, as long as they were.
func (o *output) restore(files []fileState) (out []*outFile, err error) {
	for _, s := range files {
		f, err := o.reopen(s)
		if err != nil {
			return nil, err
		}
		o.open[f] = true
		out = append(out, f)
	}
	return out, nil
}

func (o *output) reopen(s fileState) (*outFile, error) {
	broken := func(err error) (*outFile, error) {
		return nil, fmt.Errorf("the interrupted pack in %s has lost %s: use --restart to begin anew: %w", o.dir, s.Temp, err)
	}
	if !strings.HasPrefix(s.Temp, o.prefix) || filepath.Base(s.Temp) != s.Temp {
		return broken(errors.New("its name is not one of ours"))
	}
	f, err := os.OpenFile(filepath.Join(o.dir, s.Temp), os.O_RDWR|noFollow, 0)
	if err != nil {
		return broken(err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular() || info.Size() < s.Size:
		err = fmt.Errorf("it has %d bytes, not %d", info.Size(), s.Size)
	default:
		if err = f.Truncate(s.Size); err == nil {
			_, err = f.Seek(s.Size, io.SeekStart)
		}
	}
	if err != nil {
		f.Close() //nolint:errcheck // the user needs the first error
		return broken(err)
	}
	return o.newFile(f, s), nil
}

// resume puts a writer where another run's was.
func (w *writer) resume(s *state) error {
	for _, f := range s.Done {
		of, err := w.out.reopen(f)
		if err != nil {
			return err
		}
		if err := of.f.Close(); err != nil {
			return err
		}
		w.out.done = append(w.out.done, of)
	}
	if len(s.Streams) != 2 {
		return fmt.Errorf("the state of the interrupted pack in %s cannot be read: use --restart to begin anew", w.out.dir)
	}
	if s.MDS != nil {
		w.mds = *s.MDS
		w.mds.dropped = s.Dropped
	}
	for i, split := range []*stream{w.train, w.val} {
		of := s.Streams[i]
		split.index, split.inCur = of.Index, of.InCur
		if of.Shard == nil {
			continue
		}
		files, err := w.out.restore(of.Shard.Files)
		if err != nil {
			return err
		}
		if split.cur, err = w.restoreShard(files, of.Shard); err != nil {
			return err
		}
	}
	w.at, w.read, w.seen, w.result, w.before = s.At, s.Read, s.Seen, s.Result, s.Seconds
	w.cur = w.pick()
	return w.out.sweep(s)
}

// restoreShard makes a shard of its files again.
func (w *writer) restoreShard(files []*outFile, s *shardState) (shard, error) {
	want := map[string]int{Megatron: 3, MDS: 2}[w.plan.Format]
	if want == 0 {
		want = 1
	}
	if len(files) != want {
		return nil, fmt.Errorf("the state of the interrupted pack in %s cannot be read: use --restart to begin anew", w.out.dir)
	}
	d := w.plan.dtype
	switch w.plan.Format {
	case Megatron:
		return &megatron{flat: &flat{file: files[0], dtype: d, header: noHeader}, idx: files[1], lengths: files[2]}, nil
	case LLMC:
		return &flat{file: files[0], dtype: d, header: llmcHeader(d)}, nil
	case NanoGPT:
		return &flat{file: files[0], dtype: d, header: noHeader}, nil
	case NPY:
		return &flat{file: files[0], dtype: d, header: npyHeader(d)}, nil
	}
	return &mds{out: w.out, index: &w.mds, config: newMDSConfig(d, w.plan.SampleTokens), dtype: d, file: files[0], scratch: files[1],
		sampleTokens: w.plan.SampleTokens, streamedAt: -1, ends: s.Ends, firstHead: s.FirstHead}, nil
}

// sweep removes temporary files of the run that its state does not know: they were begun after it was saved.
func (o *output) sweep(s *state) error {
	known := map[string]bool{}
	for _, f := range s.Done {
		known[f.Temp] = true
	}
	for _, split := range s.Streams {
		if split.Shard != nil {
			for _, f := range split.Shard.Files {
				known[f.Temp] = true
			}
		}
	}
	return o.removeTemps(func(name string) bool { return !known[name] })
}

// removeTemps removes the temporary files of this run that are asked for.
func (o *output) removeTemps(wanted func(name string) bool) error {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !strings.HasPrefix(e.Name(), o.prefix) || !wanted(e.Name()) })
	for _, e := range entries {
		if err := os.Remove(filepath.Join(o.dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// forget removes interrupted runs whose prefixes begin so.
func (o *output) forget(prefix string) error {
	if err := os.Remove(filepath.Join(o.dir, stateName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	o.prefix, o.saved = prefix, false
	err := o.removeTemps(func(name string) bool { return strings.HasSuffix(name, ".tmp") })
	o.newPrefix()
	return err
}

// clear removes the files of runs that were killed before they saved a state: they had the lock that this run has. Other
// runs may go on elsewhere, so their files stay, and are refused unless force is set.
func (o *output) clear(force bool) error {
	entries, err := os.ReadDir(o.dir)
	foreign := func(e fs.DirEntry) bool {
		return isTemp(e) && (o.base == tempPrefix || !strings.HasPrefix(e.Name(), o.base))
	}
	switch {
	case err != nil:
		return fmt.Errorf("open the output directory: %w", err)
	case slices.ContainsFunc(entries, ofSwap): // begun after newOutput looked, by a run that may have gone on with files of this machine
		return fmt.Errorf("another pack writes into %s now", o.dir)
	case !force && slices.ContainsFunc(entries, foreign):
		return fmt.Errorf("%s has files of a pack that may still run on another machine: when none runs there, use --restart, which removes them", o.dir)
	case o.base == tempPrefix:
		return nil
	}
	if err := o.forget(o.base); err != nil {
		return fmt.Errorf("remove the files of a pack that was killed: %w", err)
	}
	return nil
}
