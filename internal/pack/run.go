package pack

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/internal/tokenizer"
	"github.com/hbmfs/hbmfs/layout"
)

// Options is the sources of a run, its output and its format. The zero value of a field means its default.
type Options struct {
	Sources []string // files and directories
	Out     string   // directory
	Format  string   // one of Formats; default Megatron

	From    string   // auto, text, jsonl or tokens; default auto, which tells by content, and JSONL by its name
	TextKey string   // of JSONL; default "text"
	Include []string // globs on the base name, or on the path below the source where they hold a slash; default: files that look like text
	// Index recognizes the datasets in a directory. It is called for sources that may hold tokens, and the volume is
	// read until Run returns; nil means that there are none.
	Index func(ctx context.Context, dir string) (*layout.Volume, error)
	Set   string // which token set of a source is meant, by its ViewDir, where there are several
	// DocumentEnd is the token that ends a document, or empty, for token sources that do not record documents. Without
	// it each such set is one document.
	DocumentEnd string

	Tokenizer string // for tokenizer.Open; default gpt2; refused with tokens
	EOT       string // auto, none, a token or its name; auto is the tokenizer's own for text, none for tokens
	DType     string // auto, u16, u32 or i32; default auto

	ShardTokens  int64   // default by format; 0 for it
	SampleTokens int64   // MDS only: samples of this many tokens instead of one per document
	ValFraction  float64 // nanogpt and llmc only: the fraction of documents that goes to the validation split
	Name         string  // starts file names; default "data"
	Workers      int     // default GOMAXPROCS
	Force        bool    // write into a directory that is not empty

	// Progress is called from one goroutine, after each batch, with bytes of the source.
	Progress func(done, total int64)
}

// Result counts and names the output of a run.
type Result struct {
	Format        string   `json:"format"`
	DType         string   `json:"dtype"`
	Tokenizer     string   `json:"tokenizer"` // empty where the source was tokenized already
	Tokens        int64    `json:"tokens"`
	Documents     int64    `json:"documents"`      // that have tokens; with MDS's fixed samples, the ones that end in a shard
	Empty         int64    `json:"empty"`          // documents without a token, which were left out
	Repaired      int64    `json:"repaired"`       // documents, or parts of long ones, whose invalid UTF-8 became U+FFFD
	Skipped       int64    `json:"skipped"`        // files of directories that are not text
	DroppedTokens int64    `json:"dropped_tokens"` // of a last, incomplete sample
	HeldOut       int64    `json:"held_out"`       // documents of the validation split
	BytesRead     int64    `json:"bytes_read"`
	Shards        []string `json:"shards"` // files with tokens, by name
	Files         []string `json:"files"`  // all files, by name
	Seconds       float64  `json:"seconds"`
}

// OptionError says that the options are wrong, or do not go together or with the sources.
type OptionError struct{ Err error }

func (e *OptionError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *OptionError) Unwrap() error { return e.Err }

// Run packs o.Sources into o.Out. On an error, which includes ctx's, o.Out is left as it was; where that cannot be
// done the error says so, and names what remains. After a kill the next run with Force leaves it so before it begins.
func Run(ctx context.Context, o Options) (Result, error) {
	start := time.Now()
	if err := checkInput(&o); err != nil {
		return Result{}, &OptionError{err}
	}
	in, err := openInput(ctx, &o)
	if err != nil {
		return Result{}, err
	}
	plan, err := newPlan(&o, in)
	if err != nil {
		return Result{}, &OptionError{err}
	}
	out, err := newOutput(o.Out, o.Force)
	if err != nil {
		return Result{}, err
	}
	result, err := plan.run(ctx, out, in)
	if err != nil {
		if undone := out.abort(); undone != nil {
			err = fmt.Errorf("%w; %w", err, undone)
		}
		return Result{}, err
	}
	result.Seconds = time.Since(start).Seconds()
	return result, nil
}

// plan is Options, checked and completed.
type plan struct {
	Options
	rules     formatRules
	dtype     layout.DType
	tokenizer *tokenizer.Tokenizer // nil for tokens
	eot       []uint32             // added to each document: nothing or one token
	limit     int64                // tokens of a shard, 0 for one shard
}

func newPlan(o *Options, in *input) (*plan, error) {
	p := &plan{Options: *o}
	if p.Format == "" {
		p.Format = Megatron
	}
	if p.Name == "" {
		p.Name = "data"
	}
	if strings.ContainsAny(p.Name, "/\\\x00") || strings.HasPrefix(p.Name, ".") {
		return nil, fmt.Errorf("name %q cannot start a file name", p.Name)
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
		if p.Tokenizer != "" {
			return nil, errors.New("the source is tokenized already: leave --tokenizer out")
		}
	} else {
		if p.tokenizer, err = tokenizer.Open(p.Tokenizer); err != nil {
			return nil, err
		}
		vocabulary = p.tokenizer.Size()
		in.files.lastCut = p.tokenizer.LastCut
	}
	if p.dtype, err = p.rules.dtypeFor(p.Format, p.DType, vocabulary); err != nil {
		return nil, err
	}
	if err := p.setEOT(); err != nil {
		return nil, err
	}
	return p, p.setSizes()
}

func (p *plan) setEOT() error {
	switch p.EOT {
	case "", "auto":
		if p.tokenizer != nil {
			eot, err := p.tokenizer.EOT()
			if err != nil {
				return err
			}
			p.eot = []uint32{eot}
		}
	case "none":
	default:
		if v, err := strconv.ParseUint(p.EOT, 10, 32); err == nil {
			p.eot = []uint32{uint32(v)}
			return nil
		}
		if p.tokenizer != nil {
			if id, ok := p.tokenizer.ID(p.EOT); ok {
				p.eot = []uint32{id}
				return nil
			}
		}
		return fmt.Errorf("eot %q is neither auto nor none nor a token", p.EOT)
	}
	return nil
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

// run writes everything and publishes it.
func (p *plan) run(ctx context.Context, out *output, in *input) (Result, error) {
	w := p.newWriter(out)
	if err := p.pump(ctx, in, w); err != nil {
		return Result{}, err
	}
	if err := w.close(ctx); err != nil {
		return Result{}, err
	}
	manifest := layout.Manifest{Version: 1, Format: p.Format, DType: p.dtype.String()}
	if p.tokenizer != nil {
		manifest.Tokenizer = p.tokenizer.Name()
	}
	if err := out.publish(ctx, &manifest); err != nil {
		return Result{}, err
	}
	result := w.result
	result.Format, result.DType, result.Tokenizer = manifest.Format, manifest.DType, manifest.Tokenizer
	result.Tokens, result.Documents = manifest.Tokens, manifest.Documents
	result.DroppedTokens, result.Skipped, result.BytesRead = w.mds.dropped, in.skipped(), in.total
	for _, f := range manifest.Files {
		result.Files = append(result.Files, f.Name)
		if f.Tokens > 0 {
			result.Shards = append(result.Shards, f.Name)
		}
	}
	return result, nil
}

// pump runs the source, the workers and the writer until the source has ended or one of them fails.
func (p *plan) pump(ctx context.Context, in *input, w *writer) error {
	group, ctx := errgroup.WithContext(ctx)
	work := make(chan *batch)
	ordered := make(chan *batch, 2*p.Workers) // bounds the batches in flight
	group.Go(func() error {
		defer close(ordered)
		defer close(work)
		return p.produce(ctx, in.source, work, ordered)
	})
	for range p.Workers {
		group.Go(func() error {
			var encoder *tokenizer.Encoder
			if p.tokenizer != nil {
				encoder = p.tokenizer.NewEncoder()
			}
			for b := range work {
				if encoder != nil {
					b.err = b.encode(encoder)
				}
				close(b.done)
			}
			return nil
		})
	}
	group.Go(func() error {
		for b := range ordered {
			select {
			case <-b.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if b.err != nil {
				return b.err
			}
			if err := w.batch(ctx, b); err != nil {
				return err
			}
			if p.Progress != nil {
				p.Progress(b.read, in.total)
			}
		}
		return ctx.Err()
	})
	return group.Wait()
}

// produce cuts the source's documents into batches and queues each for the writer, in order, and for a worker.
func (p *plan) produce(ctx context.Context, source Source, work, ordered chan<- *batch) error {
	b := &batch{done: make(chan struct{})}
	send := func() error {
		for _, queue := range []chan<- *batch{ordered, work} {
			select {
			case queue <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		b = &batch{done: make(chan struct{}), goesOn: b.parts[len(b.parts)-1].more}
		return nil
	}
	err := source.Documents(ctx, func(d Document) error {
		b.add(d)
		if b.full() {
			return send()
		}
		return nil
	})
	if err != nil || len(b.parts) == 0 {
		return err
	}
	return send()
}
