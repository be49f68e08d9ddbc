package pack

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/layout"
)

// Options is the sources of a run, its output and its format. The zero value of a field means its default.
type Options struct {
	Sources []string // files and directories
	Out     string   // directory
	Format  string   // one of Formats; default Megatron

	From    string   // auto, text, jsonl or tokens; default auto, which tells by content, and JSONL by its name
	TextKey string   // the key of JSON or the column that holds the text; default "text"
	Include []string // globs on the base name, or on the path below the source where they hold a slash; default: all that is text
	// Objects lists a source that is an address, whose objects are read until Run returns. nil: there are none.
	Objects func(ctx context.Context, source string) ([]*layout.Object, error)
	// Index recognizes the datasets in a directory. It is called for sources that may hold tokens, and the volume is
	// read until Run returns; nil means that there are none.
	Index func(ctx context.Context, dir string) (*layout.Volume, error)
	Set   string // which token set of a source is meant, by its ViewDir, where there are several
	// DocumentEnd is the token that ends a document, or empty, for token sources that do not record documents. Without
	// it each such set is one document.
	DocumentEnd string

	Tokenizer string // for tokenizer.Open; default gpt2; refused with tokens
	EOT       string // auto, none, a token or its name; auto is the tokenizer's own for text, none for tokens
	BOS       string // the token that begins a document; default none
	// AddSpecial puts around each document the tokens that the tokenizer.json adds to a text (its post_processor). EOT is none then,
	// where it is auto, and BOS is refused.
	AddSpecial bool
	// SpecialText makes the names of special tokens in a text these tokens. Else they are ordinary text.
	SpecialText bool
	DType       string // auto, u16, u32 or i32; default auto

	ShardTokens  int64   // default by format; 0 for it
	SampleTokens int64   // MDS only: samples of this many tokens instead of one per document
	ValFraction  float64 // nanogpt and llmc only: the fraction of documents that goes to the validation split
	Name         string  // starts file names; default "data"
	Workers      int     // default GOMAXPROCS
	Force        bool    // write into a directory that is not empty
	Part         Part    // write one part of several, for Join; the zero value writes the whole
	Restart      bool    // begin anew where an interrupted run left its state
	// SaveEvery is how often the state is saved with which the next run goes on; default [SaveEvery].
	SaveEvery time.Duration

	// Progress is called from one goroutine, after each batch, with bytes of the source.
	Progress func(done, total int64)

	open func(name string) (*tokenizer.Tokenizer, error) // for tests, which open the same often; default tokenizer.Open
}

// Result counts and names the output of a run.
type Result struct {
	Format        string    `json:"format"`
	DType         string    `json:"dtype"`
	Tokenizer     string    `json:"tokenizer"` // empty where the source was tokenized already
	Tokens        int64     `json:"tokens"`
	Documents     int64     `json:"documents"`      // that have tokens; with MDS's fixed samples, the ones that end in a shard
	Empty         int64     `json:"empty"`          // documents without a token, which were left out
	Repaired      int64     `json:"repaired"`       // documents whose invalid UTF-8 became U+FFFD
	Skipped       int64     `json:"skipped"`        // files that were left out
	SkippedBytes  int64     `json:"skipped_bytes"`  // of these
	LeftOut       []LeftOut `json:"left_out"`       // why, each reason once
	DroppedTokens int64     `json:"dropped_tokens"` // of a last, incomplete sample
	HeldOut       int64     `json:"held_out"`       // documents of the validation split
	BytesRead     int64     `json:"bytes_read"`
	Shards        []string  `json:"shards"` // files with tokens, by name
	Files         []string  `json:"files"`  // all files, by name
	Seconds       float64   `json:"seconds"`
}

// LeftOut is a reason for which files were left out.
type LeftOut struct {
	Reason  string `json:"reason"` // of the example
	Example string `json:"example"`
	Files   int64  `json:"files"`
	Bytes   int64  `json:"bytes"`
}

// leave counts files that were left out.
func (r *Result) leave(l LeftOut) {
	r.Skipped += l.Files
	r.SkippedBytes += l.Bytes
	kind, _, _ := strings.Cut(l.Reason, ": ")
	for i := range r.LeftOut {
		if of, _, _ := strings.Cut(r.LeftOut[i].Reason, ": "); of == kind {
			r.LeftOut[i].Files += l.Files
			r.LeftOut[i].Bytes += l.Bytes
			return
		}
	}
	r.LeftOut = append(r.LeftOut, l)
}

// add counts the documents that another part left out.
func (r *Result) add(part Result) {
	r.Empty += part.Empty
	r.Repaired += part.Repaired
	for _, l := range part.LeftOut {
		r.leave(l)
	}
}

// Run packs o.Sources into o.Out. Options that are wrong, or do not go together or with the sources, are a [cli.Mistake]. On an error, which includes ctx's, o.Out is left as it was. Where that cannot be
// done the error says so, and names the remaining files. After a kill the next run leaves it so before it begins; where names were being given, only one with Force does.
//
// A run that took longer than SaveEvery leaves its state instead, with the files that are not complete. The next run of
// the same options goes on there, and the bytes are those of a run that nobody stopped.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := checkInput(&o); err != nil {
		return Result{}, cli.Mistake{Err: err}
	}
	var p *plan
	in, err := openInput(ctx, &o, func(text []byte) int { return p.tokenizer.LastCut(text) })
	if err != nil {
		return Result{}, err
	}
	if p, err = newPlan(&o, in); err != nil {
		return Result{}, cli.Mistake{Err: err}
	}
	return p.execute(ctx, in)
}

// execute runs a plan whose tokens are there. tokenizer is the name of the one that made them.
func execute(ctx context.Context, o *Options, in *input, tokenizer string) (Result, error) {
	p, err := newPlan(o, in)
	if err != nil {
		return Result{}, cli.Mistake{Err: err}
	}
	p.tokens = tokenizer
	return p.execute(ctx, in)
}

func (p *plan) execute(ctx context.Context, in *input) (Result, error) {
	start := time.Now()
	settings := p.settings()
	if p.Part.Of > 0 {
		if r := p.packedPart(in); r != nil && !p.Force {
			return *r, nil
		}
		p = p.forPart()
	}
	out, err := newOutput(p.Out, p.Force)
	if err != nil {
		return Result{}, err
	}
	defer out.close()
	w := p.newWriter(out)
	w.settings, w.inputs, w.began = settings, in.inputs(true), start
	if err := w.begin(p.Restart); err != nil {
		return Result{}, err
	}
	result, err := p.run(ctx, out, in, w)
	if err != nil {
		if w.leaveState() {
			return Result{}, &KeptError{err, w.seen, p.Out}
		}
		if undone := out.abort(); undone != nil {
			err = fmt.Errorf("%w; %w", err, undone)
		}
		return Result{}, err
	}
	result.Seconds = w.before + time.Since(start).Seconds()
	return result, nil
}

// KeptError is the error of a run that left its state.
type KeptError struct {
	Err       error
	Documents int64 // that need not be packed again
	Out       string
}

func (e *KeptError) Error() string { return e.Err.Error() + ". " + e.Kept() }

// Kept is the sentence that says so.
func (e *KeptError) Kept() string {
	return fmt.Sprintf("%d documents are packed and kept in %s: the same command goes on there, and --restart begins anew", e.Documents, e.Out)
}

// Unwrap returns why the run ended.
func (e *KeptError) Unwrap() error { return e.Err }

// plan is Options, checked and completed.
type plan struct {
	Options
	rules     formatRules
	dtype     layout.DType
	tokenizer *tokenizer.Tokenizer // nil for tokens
	tokens    string               // the name of the tokenizer that made them, where it is known
	bos, eot  []uint32             // added to each document, before and after it
	limit     int64                // tokens of a shard, 0 for one shard
	final     *plan                // of the whole, where this one is a part's
}

// forPart is the plan that writes a part: its documents as one shard of Megatron's format, which a join reads again.
func (p *plan) forPart() *plan {
	q := *p
	q.final = p
	q.Format, q.Name, q.limit, q.SampleTokens, q.ValFraction = Megatron, "part", 0, 0, 0
	q.rules, _ = rulesOf(Megatron)
	if q.dtype != layout.U16 {
		q.dtype = layout.I32
	}
	return &q
}

// nameMax bounds a name, since files have 255 bytes: a run would find that out in the end.
const nameMax = 200

func newPlan(o *Options, in *input) (*plan, error) {
	p := &plan{Options: *o}
	if p.Format == "" {
		p.Format = Megatron
	}
	if p.Name == "" {
		p.Name = "data"
	}
	if strings.ContainsAny(p.Name, "/\\") || strings.ContainsFunc(p.Name, unicode.IsControl) || strings.HasPrefix(p.Name, ".") {
		return nil, fmt.Errorf("name %q cannot start a file name", p.Name)
	}
	if len(p.Name) > nameMax {
		return nil, fmt.Errorf("name %.20q... has %d bytes: %d leave room for the end of a file's name", p.Name, len(p.Name), nameMax)
	}
	switch {
	case p.Workers < 0:
		return nil, fmt.Errorf("there cannot be %d workers", p.Workers)
	case p.Workers == 0:
		p.Workers = runtime.GOMAXPROCS(0)
	}
	var err error
	if p.rules, err = rulesOf(p.Format); err != nil {
		return nil, err
	}
	vocabulary := in.vocabulary
	if in.tokens {
		if p.Tokenizer != "" || p.AddSpecial || p.SpecialText {
			return nil, errors.New("the source is tokenized already: leave --tokenizer, --add-special-tokens and --special-text out")
		}
	} else {
		open := tokenizer.Open
		if p.open != nil {
			open = p.open
		}
		if p.tokenizer, err = open(p.Tokenizer); err != nil {
			return nil, err
		}
		if p.SpecialText {
			if p.tokenizer, err = p.tokenizer.WithSpecialText(); err != nil {
				return nil, fmt.Errorf("find special tokens in texts: %w", err)
			}
		}
		vocabulary = p.tokenizer.Size()
	}
	if p.dtype, err = p.rules.dtypeFor(p.Format, p.DType, vocabulary); err != nil {
		return nil, err
	}
	if err := p.setAround(); err != nil {
		return nil, err
	}
	return p, p.setSizes()
}

// setAround decides the tokens before and after each document.
func (p *plan) setAround() (err error) {
	bos, eot := p.BOS, p.EOT
	if bos == "" {
		bos = "none"
	}
	if p.AddSpecial {
		if bos != "none" {
			return errors.New("--add-special-tokens says what begins a document, and so does --bos: leave one of them out")
		}
		if p.bos, p.eot, err = p.tokenizer.Around(); err != nil {
			return err
		}
		if eot == "" || eot == "auto" {
			eot = "none"
		}
	}
	begin, err := p.boundary("bos", bos, (*tokenizer.Tokenizer).BOS)
	if err != nil {
		return err
	}
	end, err := p.boundary("eot", eot, (*tokenizer.Tokenizer).EOT)
	p.bos, p.eot = slices.Concat(p.bos, begin), slices.Concat(p.eot, end)
	return err
}

// boundary returns the tokens that a flag asks for: none or one. own is the tokenizer's own token.
func (p *plan) boundary(flag, asked string, own func(*tokenizer.Tokenizer) (uint32, error)) ([]uint32, error) {
	switch asked {
	case "", "auto":
		if p.tokenizer == nil {
			return nil, nil
		}
		id, err := own(p.tokenizer)
		return []uint32{id}, err
	case "none":
		return nil, nil
	}
	if v, err := strconv.ParseUint(asked, 10, 32); err == nil {
		return []uint32{uint32(v)}, nil
	}
	if p.tokenizer != nil {
		if id, ok := p.tokenizer.ID(asked); ok {
			return []uint32{id}, nil
		}
	}
	return nil, fmt.Errorf("%s %q is neither auto nor none nor a token", flag, asked)
}

// setSizes checks the sizes that were asked for against the format and fills in the default shard size.
func (p *plan) setSizes() error {
	width := int64(p.dtype.Size())
	switch {
	case p.ShardTokens < 0 || p.SampleTokens < 0:
		return errors.New("shard and sample sizes must not be negative")
	case p.SampleTokens > 0 && p.Format != MDS:
		return fmt.Errorf("%s has no samples of a fixed size: only mds takes --sample-tokens", p.Format)
	case p.SampleTokens > defaultMDSBytes:
		return fmt.Errorf("samples of %d tokens are too long: use up to %d", p.SampleTokens, defaultMDSBytes)
	case !(p.ValFraction >= 0 && p.ValFraction < 1): // so written, NaN is refused too
		return fmt.Errorf("the validation fraction is %v, not from 0 to below 1", p.ValFraction)
	case p.ValFraction > 0 && !p.rules.val:
		return fmt.Errorf("%s has no validation file: only nanogpt and llmc take --val-fraction", p.Format)
	case p.Format == NanoGPT && p.ShardTokens > 0:
		return errors.New("nanogpt is one file, which --shard-tokens cannot split: use llmc, npy, mds or megatron")
	case p.Format == LLMC && p.ShardTokens > llmcMaxTokens:
		return fmt.Errorf("llmc holds up to %d tokens in a shard", llmcMaxTokens)
	}
	p.limit = p.ShardTokens
	switch {
	case p.limit > 0 || p.Format == Megatron || p.Format == NanoGPT:
	case p.Format == LLMC:
		p.limit = defaultLLMCTokens
	case p.Format == NPY:
		p.limit = defaultNPYTokens
	case p.Format == MDS:
		p.limit = defaultMDSBytes / width
	}
	if p.SampleTokens > 0 { // shards of whole samples, so that only the last one has a rest
		p.rules.byDocument = false
		p.limit = min(max(p.limit/p.SampleTokens, 1), mdsMaxSamples) * p.SampleTokens
	}
	return nil
}

// mostlyBinary is the error of sources that are mostly no text.
func mostlyBinary(bytes, of int64) error {
	return fmt.Errorf("%d of the sources' %d bytes are neither text nor tokens that this program can read: say with --from what they are, or with --include which files to pack",
		bytes, of)
}

// run writes everything and publishes it.
func (p *plan) run(ctx context.Context, out *output, in *input, w *writer) (Result, error) {
	if err := p.pump(ctx, in, w); err != nil {
		return Result{}, err
	}
	w.clean = false // a state is as good as the one before, or not at all
	if in.mostlyText && p.final == nil && w.result.SkippedBytes > in.total/2 {
		w.mayLeave = false
		return Result{}, mostlyBinary(w.result.SkippedBytes, in.total)
	}
	if err := w.close(ctx); err != nil {
		return Result{}, err
	}
	manifest := layout.Manifest{Version: 1, Format: p.Format, DType: p.dtype.String(), Tokenizer: p.tokens}
	if p.tokenizer != nil {
		manifest.Tokenizer = p.tokenizer.Name()
	}
	result := w.result
	result.BytesRead = in.total
	result.Format, result.DType, result.Tokenizer = manifest.Format, manifest.DType, manifest.Tokenizer
	if p.final != nil {
		for _, f := range out.done {
			result.Tokens += f.sums.Tokens
			result.Documents += f.sums.Documents
		}
		if err := p.final.writePart(ctx, out, in, result); err != nil {
			return Result{}, err
		}
	}
	if err := out.publish(ctx, &manifest); err != nil {
		return Result{}, err
	}
	result.Tokens, result.Documents = manifest.Tokens, manifest.Documents
	result.DroppedTokens = w.mds.dropped
	result.name(&manifest)
	return result, nil
}

// name names the files that a manifest has, and leaves no list out.
func (r *Result) name(m *layout.Manifest) {
	r.Files, r.Shards = nil, nil
	if r.LeftOut == nil {
		r.LeftOut = []LeftOut{}
	}
	for _, f := range m.Files {
		r.Files = append(r.Files, f.Name)
		if f.Tokens > 0 {
			r.Shards = append(r.Shards, f.Name)
		}
	}
}
