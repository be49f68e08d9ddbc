package pack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/layout"
)

// Part is one of several parts of a run, which several machines make. The zero value is the whole.
type Part struct{ Index, Of int }

// maxParts bounds the parts of a run. More are no help: a part has a directory of its own.
const maxParts = 1 << 20

// ParsePart reads I/N, with I from 0 to N-1.
func ParsePart(text string) (Part, error) {
	i, n, ok := strings.Cut(text, "/")
	index, err1 := strconv.Atoi(i)
	of, err2 := strconv.Atoi(n)
	if !ok || err1 != nil || err2 != nil || of < 1 || of > maxParts || index < 0 || index >= of {
		return Part{}, fmt.Errorf("%q is no part: write I/N, with I from 0 to N-1, such as 0/16", text)
	}
	return Part{index, of}, nil
}

func (p Part) String() string { return fmt.Sprintf("%d/%d", p.Index, p.Of) }

// partName is the file beside a part's tokens that names its place among the parts.
const partName = "hbmfs-part.json"

// partFile is the content of partName. Its tokens lie beside it, as documents of Megatron's format.
type partFile struct {
	Version int       `json:"hbmfs_part"` // 1
	Index   int       `json:"part"`
	Of      int       `json:"of"`
	Options []setting `json:"options"`
	Inputs  string    `json:"inputs"` // a digest of the names and sizes of all files of the sources
	Total   int64     `json:"total"`  // bytes of all sources
	Plan    partPlan  `json:"plan"`
	Result  Result    `json:"result"`
}

// partPlan is the state that a join needs to write the output of a single run.
type partPlan struct {
	Format       string  `json:"format"`
	DType        string  `json:"dtype"`
	Tokenizer    string  `json:"tokenizer"`
	Name         string  `json:"name"`
	ShardTokens  int64   `json:"shard_tokens"`
	SampleTokens int64   `json:"sample_tokens"`
	ValFraction  float64 `json:"val_fraction"`
	MostlyText   bool    `json:"mostly_text"`
}

// writePart writes partName.
func (p *plan) writePart(ctx context.Context, out *output, in *input, r Result) error {
	options := p.settings()
	options[len(options)-1].Value = "" // the part itself
	name := ""
	if p.tokenizer != nil {
		name = p.tokenizer.Name()
	}
	data, err := json.MarshalIndent(&partFile{
		Version: 1, Index: p.Part.Index, Of: p.Part.Of, Options: options, Inputs: in.inputs(false), Total: in.corpus.Total, Result: r,
		Plan: partPlan{p.Format, p.dtype.String(), name, p.Name, p.ShardTokens, p.SampleTokens, p.ValFraction, in.mostlyText},
	}, "", "  ")
	if err != nil {
		return err
	}
	f, err := out.create(partName)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		return err
	}
	return f.finish(ctx)
}

// packedPart returns the result of this very part where it is complete already: who starts jobs again need not look.
func (p *plan) packedPart(in *input) *Result {
	q, err := readPart(p.Out)
	if err != nil || q.Index != p.Part.Index || q.Of != p.Part.Of {
		return nil
	}
	options := p.settings()
	options[len(options)-1].Value = ""
	if (&state{Version: stateVersion, Options: q.Options, Inputs: q.Inputs}).matches(options, in.inputs(false)) != "" {
		return nil
	}
	return &q.Result
}

// readPart reads a part's description and checks its files' sizes against its manifest.
func readPart(dir string) (*partFile, error) {
	data, err := os.ReadFile(filepath.Join(dir, partName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is no part: it has no %s, which `hbmfs pack --part` writes last", dir, partName)
	}
	if err != nil {
		return nil, fmt.Errorf("open part: %w", err)
	}
	p := &partFile{}
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(p); err != nil || p.Version != 1 || p.Of < 1 || p.Of > maxParts || p.Index < 0 || p.Index >= p.Of {
		return nil, fmt.Errorf("%s cannot be read as a part: another version of hbmfs wrote it, or it is damaged", filepath.Join(dir, partName))
	}
	data, err = os.ReadFile(filepath.Join(dir, layout.ManifestName))
	if err != nil {
		return nil, fmt.Errorf("open part: %w", err)
	}
	m, err := layout.ParseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("open part %s: %w", dir, err)
	}
	for _, f := range m.Files {
		info, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil {
			return nil, fmt.Errorf("open part: %w", err)
		}
		if info.Size() != f.Size {
			return nil, fmt.Errorf("part %s: %s has %d bytes, its manifest says %d: make the part again", dir, f.Name, info.Size(), f.Size)
		}
	}
	p.Result.name(m) // the part was described before its files had names
	return p, nil
}

// globs replaces patterns by their matches, where a shell has not.
func globs(sources []string) (out []string, err error) {
	for _, source := range sources {
		names := []string{source}
		if _, err := os.Lstat(source); errors.Is(err, os.ErrNotExist) && strings.ContainsAny(source, "*?[") {
			if names, err = filepath.Glob(source); err != nil || len(names) == 0 {
				return nil, fmt.Errorf("open part: nothing matches %q", source)
			}
		}
		out = append(out, names...)
	}
	return out, nil
}

// joinInput checks that the sources are all parts of one run, and sets the options to that run's.
func joinInput(ctx context.Context, o *Options) (*input, []*partFile, error) {
	parts := []*partFile(nil)
	dirs := []string(nil)
	var first *partFile
	var firstDir string
	sources, err := globs(o.Sources)
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range sources {
		p, err := readPart(dir)
		if err != nil {
			return nil, nil, err
		}
		if first == nil {
			first, firstDir = p, dir
			parts, dirs = make([]*partFile, p.Of), make([]string, p.Of)
		}
		switch why := (&state{Version: stateVersion, Options: first.Options, Inputs: first.Inputs}).matches(p.Options, p.Inputs); {
		case p.Of != first.Of:
			return nil, nil, fmt.Errorf("%s is one of %d parts, and %s one of %d: they are of different runs", firstDir, first.Of, dir, p.Of)
		case why != "":
			return nil, nil, fmt.Errorf("%s and %s are parts of different runs: %s", firstDir, dir, why)
		case parts[p.Index] != nil:
			return nil, nil, fmt.Errorf("%s and %s are both part %d of %d: give each once", dirs[p.Index], dir, p.Index, p.Of)
		}
		parts[p.Index], dirs[p.Index] = p, dir
	}
	var missing []string
	for i, p := range parts {
		if p == nil {
			missing = append(missing, strconv.Itoa(i))
		}
	}
	if len(missing) > 0 {
		return nil, nil, fmt.Errorf("%d of the %d parts are missing: %s", len(missing), len(parts), strings.Join(missing[:min(len(missing), 20)], ", "))
	}
	in, err := partTokens(ctx, o, parts, dirs)
	return in, parts, err
}

// partTokens opens the tokens of all parts, in order.
func partTokens(ctx context.Context, o *Options, parts []*partFile, dirs []string) (*input, error) {
	var sets []tokenSet
	for i, dir := range dirs {
		if parts[i].Result.Documents == 0 {
			continue
		}
		volume, err := o.Index(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("open part: %w", err)
		}
		if len(volume.Sets) != 1 || volume.Sets[0].DType == layout.DTypeUnknown {
			return nil, fmt.Errorf("part %s holds no tokens that can be read: make the part again", dir)
		}
		sets = append(sets, tokenSet{source: dir, set: volume.Sets[0], shards: volume.Sets[0].Shards})
	}
	return newTokenInput(sets, o)
}

// Join makes one dataset of parts, the same as one run would have made. o.Sources are the parts, in any order; the
// other options but Out, Workers, Force, Index and Progress are those of the parts.
func Join(ctx context.Context, o Options) (Result, error) {
	if len(o.Sources) == 0 {
		return Result{}, cli.Mistakef("no part is given")
	}
	o.From, o.DocumentEnd, o.Tokenizer, o.EOT = "tokens", "", "", "none"
	in, parts, err := joinInput(ctx, &o)
	if err != nil {
		return Result{}, err
	}
	of := parts[0].Plan
	o.Format, o.DType, o.Name = of.Format, of.DType, of.Name
	o.ShardTokens, o.SampleTokens, o.ValFraction = of.ShardTokens, of.SampleTokens, of.ValFraction
	joined := Result{}
	for _, p := range parts {
		joined.add(p.Result)
	}
	if of.MostlyText && joined.SkippedBytes > parts[0].Total/2 {
		return Result{}, mostlyBinary(joined.SkippedBytes, parts[0].Total)
	}
	r, err := execute(ctx, &o, in, of.Tokenizer)
	if err != nil {
		return Result{}, err
	}
	r.Tokenizer = of.Tokenizer
	r.Empty, r.Repaired, r.Skipped, r.SkippedBytes, r.LeftOut, r.BytesRead = joined.Empty, joined.Repaired, joined.Skipped, joined.SkippedBytes, joined.LeftOut, parts[0].Total
	return r, nil
}
