package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/pack"
	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/progress"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/layout"
)

const packLong = `Pack writes shards of tokens from texts, or from a dataset that is tokenized already.

A SOURCE is a file, a directory, a glob, or an address: s3://BUCKET/PREFIX, https://HOST/FILE. Pack knows files by their
content:
  text                 one document
  JSON Lines           a document a line, under --text-key
  a JSON array         a document an object, under --text-key
  Parquet, Arrow       a document a row, in the column --text-key; Arrow includes Hugging Face's save_to_disk
  token datasets       their documents: any format that hbmfs inspect knows; lists of tokens in Parquet
Each may be compressed by gzip, zstd, bzip2 or xz. All else is never tokenized: a file that is named is refused, and in a
directory it is left out and counted. Hidden files and links are left out, and text beside Parquet or Arrow files.

Formats, and where their tokens start:
  megatron  {name}_text_document.bin and .idx       byte 0
  llmc      {name}_train_000000.bin                 byte 1024, which the format fixes
  nanogpt   train.bin, and val.bin on request       byte 0
  npy       {name}_00000.npy                        byte 4096
  mds       index.json and shard.00000.mds          a multiple of 4096, for the first sample of each shard

A tokenizer is one of the vocabularies in this program, or a file of a model. That is its tokenizer.json, Mistral's tekken.json, a
sentencepiece model, or a rank file of tiktoken or Llama. A directory stands for the file in it. The tokens are those of the
tokenizers, sentencepiece and tiktoken packages; a demand of a file that this program cannot meet exactly is an error. Without
other flags they are those of tokenizers' encode with encode_special_tokens and without add_special_tokens, and then --eot; with
--add-special-tokens --special-text those of its plain encode.

The same input gives the same bytes with any number of workers. An error or Ctrl-C leaves nothing behind, except after
--save-every. Then the state stays in OUT, and the same command goes on there. So it does after a kill.

Several machines share the work by --part. Each packs one part into a directory of its own. --join makes one dataset of all parts,
equal to that of one run. Parts are cut by the sizes of the sources' files, which must be the same everywhere.

hbmfs-manifest.json, beside the shards, holds sizes, counts and checksums: hbmfs inspect --verify checks them.`

const packExample = `  hbmfs pack corpus/ out/
  hbmfs pack --to nanogpt --val-fraction 0.0005 web.jsonl out/
  hbmfs pack --to mds --sample-tokens 2048 'web/*.parquet' out/
  hbmfs pack --tokenizer models/Llama-3-8B web.jsonl out/
  hbmfs pack --to npy megatron-dataset/ out/
  hbmfs pack --part 3/16 s3://crawl/2026/ parts/3    # one of 16 jobs, 0 to 15
  hbmfs pack --join out/ parts/*`

// packFlags are the flags of hbmfs pack.
type packFlags struct {
	printer
	options pack.Options
	source  dataset.Options
	part    string
	join    bool
}

// newPackCommand returns `hbmfs pack`.
func newPackCommand() *cobra.Command {
	var p packFlags
	o := &p.options
	cmd := &cobra.Command{
		Use:     "pack SOURCE... OUT [flags]\n  hbmfs pack --join OUT PART... [flags]",
		Short:   "Turn text, or other token datasets, into shards",
		Long:    packLong,
		Example: packExample,
		Args: func(_ *cobra.Command, args []string) error {
			if o.Tokenizer != "list" && len(args) < 2 {
				return cli.Mistakef("pack needs at least one source and the output directory: usage: hbmfs pack SOURCE... OUT; or: hbmfs pack --join OUT PART... (all parts)")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Tokenizer == "list" {
				fmt.Fprintln(cmd.OutOrStdout(), strings.Join(tokenizer.Names(), "\n"))
				return nil
			}
			if err := p.arrange(cmd, args); err != nil {
				return cli.Mistake{Err: err}
			}
			return p.onMounts(cmd, args, p.run)
		},
	}
	f := cmd.Flags()
	addChoice(cmd, &o.Format, "to", pack.Megatron, "format: "+strings.Join(pack.Formats(), ", "), pack.Formats()...)
	addChoice(cmd, &o.From, "from", "auto", "kind of the sources: auto, text, jsonl, tokens", "auto", "text", "jsonl", "tokens")
	f.StringVar(&o.TextKey, "text-key", "text", "`key` of JSON, or column of Parquet and Arrow, with the text; nested columns have dots")
	f.StringVar(&o.TextKey, "column", "text", "`key`: the same as --text-key")
	f.StringArrayVar(&o.Include, "include", nil, "pack only files that match `GLOB`; with a slash it is compared with the path; may be given again (default: all with text)")
	f.StringVar(&o.Set, "set", "", "`set` of tokens to pack, where a source has several")
	f.StringVar(&o.DocumentEnd, "document-end", "", "`TOKEN` that ends a document, for token sources that do not record documents")
	f.StringVar(&o.Tokenizer, "tokenizer", "", "`TOKENIZER` for text: a tokenizer.json, tekken.json, sentencepiece or tiktoken file, a model's directory, or a name; list prints the names (default: gpt2)")
	_ = cmd.RegisterFlagCompletionFunc("tokenizer", cobra.FixedCompletions(append(tokenizer.Names(), "list"), cobra.ShellCompDirectiveDefault)) // the flag exists
	f.StringVar(&o.EOT, "eot", "auto", "`TOKEN` after each document: a number, a name such as '<|endoftext|>', none, or auto: the tokenizer's own for text")
	f.StringVar(&o.BOS, "bos", "none", "`TOKEN` before each document: a number, a name, none, or auto: the tokenizer's own")
	f.BoolVar(&o.AddSpecial, "add-special-tokens", false, "add the tokens of the tokenizer.json's post_processor around each document, instead of --bos and --eot")
	f.BoolVar(&o.SpecialText, "special-text", false, "take names of special tokens in a text, such as '<|im_start|>', for these tokens")
	f.StringVar(&o.DType, "dtype", "auto", "`type` of tokens: u16, u32, i32, or auto: u16 up to 65536 tokens in the vocabulary")
	f.Var((*size.Count)(&o.ShardTokens), "shard-tokens", "tokens of a shard, such as 100M; in megatron and mds documents stay whole (default: by format)")
	f.Var((*size.Count)(&o.SampleTokens), "sample-tokens", "mds: tokens of a sample, instead of one sample for each document")
	f.Float64Var(&o.ValFraction, "val-fraction", 0, "nanogpt, llmc: fraction of the documents for the validation split")
	f.StringVar(&o.Name, "name", "data", "`beginning` of file names")
	f.IntVar(&o.Workers, "workers", 0, "workers that tokenize (default: one for each CPU)")
	f.BoolVar(&o.Force, "force", false, "write into a directory that is not empty, and replace the dataset of an earlier pack")
	f.StringVar(&p.part, "part", "", "pack part `I/N` of the sources, with I from 0 to N-1, for --join")
	f.BoolVar(&p.join, "join", false, "make one dataset, OUT, of all N parts, with the options of the parts")
	f.BoolVar(&o.Restart, "restart", false, "begin anew instead of resuming an interrupted pack")
	addRequestFlags(f, &p.source)
	f.DurationVar(&o.SaveEvery, "save-every", pack.SaveEvery, "`time` between saves of the state from which an interrupted pack resumes")
	p.takeJSON(cmd)
	return cmd
}

// arrange makes options of flags and arguments.
func (p *packFlags) arrange(cmd *cobra.Command, args []string) error {
	o := &p.options
	o.Sources, o.Out = args[:len(args)-1], args[len(args)-1]
	if cmd.Flags().Changed("part") {
		part, err := pack.ParsePart(p.part)
		if err != nil {
			return fmt.Errorf("--part: %w", err)
		}
		o.Part = part
	}
	if o.SaveEvery <= 0 {
		return fmt.Errorf("--save-every %v: want a time such as 20s", o.SaveEvery)
	}
	if !p.join {
		return nil
	}
	o.Sources, o.Out = args[1:], args[0]
	for _, name := range []string{"to", "from", "text-key", "column", "include", "set", "document-end", "tokenizer", "eot", "bos", "add-special-tokens", "special-text", "dtype", "shard-tokens", "sample-tokens", "val-fraction", "name", "part"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s was said when the parts were packed: leave it out with --join", name)
		}
	}
	return nil
}

func (p *packFlags) run(ctx context.Context) error {
	o := p.options
	ctx, why := p.source.UntilDark(ctx)
	datasets := &dataset.Many{Options: p.source, Note: func(note string) { fmt.Fprintln(p.stderr, note) }}
	defer func() { _ = datasets.Close() }() // all that was read has been read
	o.Index, o.Objects = datasets.Index, datasets.Objects
	bar := progress.New(p.stderr, "packing", -1, true)
	o.Progress = bar.Set
	run, began := pack.Run, time.Now()
	if p.join {
		run = pack.Join
	}
	result, err := run(ctx, o)
	bar.Close()
	var kept *pack.KeptError
	if errors.As(err, &kept) && errors.Is(err, context.Canceled) { // main says no more than that
		fmt.Fprintln(p.stderr, kept.Kept())
	}
	if err != nil {
		return why(err)
	}
	warnPacked(p.stderr, &o, &result)
	if result.Tokenizer == "" { // the source was a dataset
		p.warnLeftOut(datasets.Problems())
	}
	return p.print(result, func() {
		rate := ""
		if s := time.Since(began).Seconds(); s >= 1 && result.Seconds < s+1 { // one run, long enough to tell
			rate = fmt.Sprintf(", %.1f MB/s, %.2f M tokens/s", float64(result.BytesRead)/1e6/s, float64(result.Tokens)/1e6/s)
		}
		fmt.Fprintf(p.stdout, "%s: %d tokens (%s) of %d documents in %d shards, %.1f s%s\n",
			o.Out, result.Tokens, result.DType, result.Documents, len(result.Shards), result.Seconds, rate)
	})
}

// warnLeftOut names the problems of the datasets: files that were left out of them were not packed. It names guessed types, too.
func (p *packFlags) warnLeftOut(problems []layout.Problem) {
	const most = 10
	for i, one := range problems {
		if i == most {
			fmt.Fprintf(p.stderr, "warning: and %d more: hbmfs inspect lists them\n", len(problems)-most)
			return
		}
		fmt.Fprintf(p.stderr, "warning: %s: %s\n", cli.Printable(one.Object), cli.Printable(one.Detail))
	}
}

// warnPacked names documents that the output lacks, and why.
func warnPacked(stderr io.Writer, o *pack.Options, result *pack.Result) {
	if result.Repaired > 0 {
		fmt.Fprintf(stderr, "warning: invalid UTF-8 in %d documents was replaced by U+FFFD\n", result.Repaired)
	}
	if result.Empty > 0 {
		fmt.Fprintf(stderr, "empty documents, left out: %d\n", result.Empty)
	}
	if o.ValFraction > 0 && result.HeldOut == 0 {
		fmt.Fprintf(stderr, "warning: %v of %d documents is less than one: there is no validation split\n", o.ValFraction, result.Documents)
	}
	if result.DroppedTokens > 0 {
		fmt.Fprintf(stderr, "warning: the last %d tokens fill no sample and were left out\n", result.DroppedTokens)
	}
	for _, l := range result.LeftOut {
		also := ""
		if l.Files > 1 {
			also = fmt.Sprintf(", and %d files like it", l.Files-1)
		}
		fmt.Fprintf(stderr, "left out: %s%s: %s\n", cli.Printable(l.Example), also, l.Reason)
	}
}
