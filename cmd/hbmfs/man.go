package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/manpage"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/drain"
	"github.com/hbmfs/hbmfs/layout"
)

// manual has the tables of --help, the manual pages and docs/reference/commands.md.
func manual() *manpage.Manual {
	exit := func(code int, text string, of ...string) manpage.Item {
		return manpage.Item{Term: strconv.Itoa(code), Text: text, Of: of}
	}
	item := func(term, text string, of ...string) manpage.Item {
		return manpage.Item{Term: term, Text: text, Of: of}
	}
	gpu := []string{"read", "bench", "check", "cufile-json"}
	remote := []string{"mount", "ls", "inspect", "pack", "checkpoint ls", "checkpoint drain"}
	return &manpage.Manual{
		Version: version,
		Exit: []manpage.Item{
			exit(exitOK, "done"),
			exit(exitFailed, "it did not work; the message says why"),
			exit(exitUsage, "the command line is wrong"),
			exit(exitProblems, "there are problems, which are listed", "inspect", "cache verify", "checkpoint verify", "kv verify"),
			exit(exitProblems, "a checkpoint is not at the destination; the output says why", "checkpoint drain"),
			exit(exitProblems, "a line is FAIL, --require is not met, or the file of --deepspeed has errors", "check"),
			exit(exitProblems, "a mount does not answer, or is degraded", "status"),
			exit(exitProblems, "a mount would leave files out, or could not read them; they are named", "ls"),
			exit(exitProblems, "a mount was not upgraded; the output says why", "upgrade"),
			exit(exitProblems, "some bytes lie in no local file", "locate"),
			exit(exitBusy, "the mount is in use, and stays", "umount"),
			exit(exitBusy, "a living process works on the checkpoint, which stays", "checkpoint rm"),
			exit(exitBusy, "another process drains the directory", "checkpoint drain"),
			exit(exitMissing, "with --foreground: the source does not exist", "mount"),
			exit(exitDenied, "with --foreground: the source may not be read", "mount"),
			exit(exitSignal, "interrupted"),
		},
		Files: []manpage.Item{
			item("/var/log/hbmfs.log", "log of root's daemons; others have ~/.local/state/hbmfs/hbmfs.log", "mount"),
			item("/sbin/mount.fuse.hbmfs", "link to hbmfs, by which mount(8) mounts lines of /etc/fstab", "mount"),
			item("/etc/hbmfs/NAME.conf", "SOURCE, MOUNTPOINT and OPTIONS of the unit hbmfs@NAME.service", "mount"),
			item("/etc/fuse.conf", "user_allow_other lets ordinary users give --allow-other", "mount"),
			item("MOUNT/.hbmfs/views", "views of the dataset, which no listing of MOUNT shows", "mount", "inspect"),
			item("MOUNT/.hbmfs/status", "the state of the mount, as JSON", "mount", "status", "top", "kv ls", "kv stats"),
			item("MOUNT/.hbmfs/metrics", "metrics for Prometheus", "mount", "top"),
			item("CACHE/segments", "parts of remote objects, below --cache-dir", "mount", "cache"),
			item("CHECKPOINT/"+checkpoint.ManifestName, "sizes and checksums of its files, written last", "checkpoint"),
			item(".CHECKPOINT.hbmfs.tmp", "a draft, beside its checkpoint to be", "checkpoint"),
			item("DIR/"+drain.StateName, "journals of the objects at the destination, status and lock of the drain", "checkpoint drain"),
			item(layout.ManifestName, "sizes, counts and checksums of the files beside it", "pack", "inspect", "read"),
			item("DIRECTORY/NAMESPACE/slab, index, space", "slots of blocks of a namespace, their index, and its settings", "kv"),
			item("/etc/cufile.json", "the configuration of cuFile", "check", "cufile-json"),
		},
		Environment: []manpage.Item{
			item("XDG_STATE_HOME", "directory of an ordinary user's log, instead of ~/.local/state", "mount"),
			item("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN", "keys of S3", remote...),
			item("AWS_PROFILE, AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE", "profile of AWS's files, and where these are", remote...),
			item("AWS_REGION, AWS_ENDPOINT_URL_S3", "region and endpoint where the source names none", remote...),
			item("HF_TOKEN, HF_TOKEN_PATH, HF_HOME", "token of the Hugging Face Hub, a file with it, and the directory of the Hub's tools", "mount", "ls", "inspect", "pack"),
			item("HF_ENDPOINT", "mirror of the Hugging Face Hub", "mount", "ls", "inspect", "pack"),
			item("HF_HUB_OFFLINE, HF_HUB_CACHE", "1: hf:// sources are those of the local cache of the Hub's tools, and where that is", "mount", "ls", "inspect", "pack"),
			item("REGISTRY_AUTH_FILE, DOCKER_CONFIG", "file of logins of OCI registries, and directory of Docker's configuration", "mount", "ls", "inspect", "pack"),
			item("HTTP_PROXY, HTTPS_PROXY, NO_PROXY", "proxies of remote sources", remote...),
			item("OTEL_EXPORTER_OTLP_ENDPOINT", "collector of OpenTelemetry that traces go to; others of OTEL_* count, too", "mount"),
			item("CUFILE_ENV_PATH_JSON", "cufile.json to use instead of /etc/cufile.json", gpu...),
		},
	}
}

// newManCommand writes the manual of packages and docs.
func newManCommand(root *cobra.Command) *cobra.Command {
	markdown := false
	cmd := &cobra.Command{
		Use:    "man [DIRECTORY]",
		Short:  "Write the manual pages",
		Hidden: true, // for packagers
		Args: func(cmd *cobra.Command, args []string) error {
			if markdown && len(args) == 0 || !markdown && len(args) == 1 {
				return nil
			}
			return cli.Mistakef("name the directory for the manual pages, or give --markdown: usage: %s", cmd.UseLine())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if markdown {
				return manual().Markdown(cmd.OutOrStdout(), root)
			}
			return manual().Write(root, args[0])
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print one document in Markdown instead: docs/reference/commands.md")
	return cmd
}
