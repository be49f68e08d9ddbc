package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/pack"
	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/tokenizer"
	"github.com/hbmfs/hbmfs/internal/top"
	"github.com/hbmfs/hbmfs/layout"
)

const packLong = `Pack writes shards of tokens from text, JSONL, or a dataset that is tokenized already.

A SOURCE is a file or a directory. In a directory every file that looks like text is one document. Every line of a
.jsonl or .ndjson file is one, or of a .json file that holds an object a line. Hidden files are left out. Files that
gzip or zstd compressed are unpacked first. A directory whose bytes are mostly a dataset that hbmfs can read
gives that dataset's documents. OUT is a directory, made if need be.

Formats, and where their tokens start:
  megatron  {name}_text_document.bin and .idx       byte 0
  llmc      {name}_train_000000.bin                 byte 1024, which the format fixes
  nanogpt   train.bin, and val.bin on request       byte 0
  npy       {name}_00000.npy                        byte 4096
  mds       index.json and shard.00000.mds          a multiple of 4096, for the first sample of each shard

A tokenizer is one of the vocabularies that are part of the program, or what a model ships: its tokenizer.json, Mistral's
tekken.json, or a rank file of tiktoken or Llama. A directory stands for the file in it. The tokens are those of the
tokenizers and tiktoken packages; what a file asks that this program cannot do exactly is an error.

The same input gives the same bytes, whatever the number of workers. Nothing is left behind on an error or Ctrl-C.
hbmfs-manifest.json, beside the shards, holds sizes, counts and checksums: hbmfs inspect --verify checks them.`

const packExample = `  hbmfs pack corpus/ out/
  hbmfs pack --to nanogpt --val-fraction 0.0005 web.jsonl out/
  hbmfs pack --to mds --sample-tokens 2048 --tokenizer cl100k_base corpus/ out/
  hbmfs pack --tokenizer models/Llama-3-8B web.jsonl out/
  hbmfs pack --to npy megatron-dataset/ out/`

// newPackCommand returns `hbmfs pack`.
func newPackCommand() *cobra.Command {
	var o pack.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "pack SOURCE... OUT",
		Short:   "Tokenize text, or rewrite a token dataset, into shards of any format",
		Long:    packLong,
		Example: packExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.Tokenizer != "list" && len(args) < 2 {
				return usageError{fmt.Errorf("pack needs at least one source and the output directory: usage: %s", cmd.UseLine())}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Tokenizer == "list" {
				fmt.Fprintln(cmd.OutOrStdout(), strings.Join(tokenizer.Names(), "\n"))
				return nil
			}
			o.Sources, o.Out = args[:len(args)-1], args[len(args)-1]
			return onMounts(cmd, args, func(ctx context.Context) error {
				return runPack(ctx, o, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	f := cmd.Flags()
	addChoice(cmd, &o.Format, "to", pack.Megatron, "format: "+strings.Join(pack.Formats(), ", "), pack.Formats()...)
	addChoice(cmd, &o.From, "from", "auto", "kind of the sources: auto, text, jsonl, tokens", "auto", "text", "jsonl", "tokens")
	f.StringVar(&o.TextKey, "text-key", "text", "key of the text in a line of JSONL")
	f.StringArrayVar(&o.Include, "include", nil, "pack only files of directories that match `GLOB`, on the name, or on the path if it has a slash (repeatable; default: those that look like text)")
	f.StringVar(&o.Set, "set", "", "the token set to pack, where a source holds several")
	f.StringVar(&o.DocumentEnd, "document-end", "", "`TOKEN` that ends a document, for token sources that do not record documents")
	f.StringVar(&o.Tokenizer, "tokenizer", "", "`TOKENIZER` for text: a tokenizer.json, tekken.json or tiktoken file, a model's directory, or one of "+strings.Join(tokenizer.Names(), ", ")+"; list prints these (default gpt2)")
	_ = cmd.RegisterFlagCompletionFunc("tokenizer", cobra.FixedCompletions(append(tokenizer.Names(), "list"), cobra.ShellCompDirectiveDefault)) // the flag exists
	f.StringVar(&o.EOT, "eot", "auto", "`TOKEN` added after each document: a number, the name of a token such as '<|endoftext|>', none, or auto (the tokenizer's own for text, none for tokens)")
	f.StringVar(&o.DType, "dtype", "auto", "u16, u32, i32, or auto: u16 if the vocabulary has up to 65536 tokens")
	f.Var((*size.Count)(&o.ShardTokens), "shard-tokens", "tokens of a shard, such as 100M (default by format; documents stay whole in megatron and mds)")
	f.Var((*size.Count)(&o.SampleTokens), "sample-tokens", "mds: samples of exactly this many tokens instead of one per document")
	f.Float64Var(&o.ValFraction, "val-fraction", 0, "nanogpt, llmc: fraction of the documents for the validation split")
	f.StringVar(&o.Name, "name", "data", "how file names start")
	f.IntVar(&o.Workers, "workers", 0, "tokenizing goroutines (default: one per CPU)")
	f.BoolVar(&o.Force, "force", false, "write into a directory that is not empty; replaces the dataset of an earlier pack there")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func runPack(ctx context.Context, o pack.Options, asJSON bool, stdout, stderr io.Writer) error {
	datasets := &datasetIndexer{}
	defer datasets.close()
	o.Index = datasets.index
	bar := progress.New(stderr, "packing", -1, true)
	o.Progress = bar.Set
	result, err := pack.Run(ctx, o)
	bar.Close()
	var wrong *pack.OptionError
	if errors.As(err, &wrong) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	if result.Repaired > 0 {
		fmt.Fprintf(stderr, "warning: invalid UTF-8 in %d documents was replaced by U+FFFD\n", result.Repaired)
	}
	if o.ValFraction > 0 && result.HeldOut == 0 {
		fmt.Fprintf(stderr, "warning: %v of %d documents is less than one: there is no validation split\n", o.ValFraction, result.Documents)
	}
	if result.DroppedTokens > 0 {
		fmt.Fprintf(stderr, "warning: the last %d tokens fill no sample and were left out\n", result.DroppedTokens)
	}
	if result.Skipped > 0 {
		fmt.Fprintf(stderr, "%d files do not look like text and were left out, --include takes them\n", result.Skipped)
	}
	if result.Tokenizer == "" { // the source was a dataset
		datasets.warn(stderr)
	}
	if asJSON {
		return writeJSON(stdout, result)
	}
	fmt.Fprintf(stdout, "%s: %d tokens (%s) of %d documents in %d shards, %.1f s\n",
		o.Out, result.Tokens, result.DType, result.Documents, len(result.Shards), result.Seconds)
	return nil
}

// datasetIndexer opens directories as datasets and keeps them open until close.
type datasetIndexer struct {
	dirs    []*cache.Dir
	leftOut []layout.Problem
	volumes []*layout.Volume
}

func (x *datasetIndexer) index(ctx context.Context, path string) (*layout.Volume, error) {
	const maxOpen = 64
	dir, err := cache.OpenDir(path, maxOpen)
	if err != nil {
		return nil, err
	}
	x.dirs = append(x.dirs, dir)
	listing, err := dir.List(ctx)
	if err != nil {
		return nil, err
	}
	volume, err := layout.Index(ctx, listing.Objects, layout.Options{})
	if err == nil {
		x.leftOut, x.volumes = append(x.leftOut, listing.Problems...), append(x.volumes, volume)
	}
	return volume, err
}

// warn names the problems of the datasets: files that were left out of them were not packed.
func (x *datasetIndexer) warn(w io.Writer) {
	const most = 10
	problems := x.leftOut
	for _, v := range x.volumes {
		problems = append(problems, v.Problems()...)
	}
	for i, p := range problems {
		if i == most {
			fmt.Fprintf(w, "warning: and %d more: hbmfs inspect lists them\n", len(problems)-most)
			return
		}
		fmt.Fprintf(w, "warning: %s: %s\n", top.Printable(p.Object), top.Printable(p.Detail))
	}
}

func (x *datasetIndexer) close() {
	for _, d := range x.dirs {
		d.Close() //nolint:errcheck // all that was read has been read
	}
}
