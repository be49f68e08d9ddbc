package volume

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Request is the part of a call that describes a volume.
type Request struct {
	ID         string
	Attributes map[string]string // volume_context: attributes, and kubelet's data of the pod
	Secrets    map[string]string
	MountGroup string
	Staging    bool   // NodeStageVolume: the pod is not known yet
	StagedAuth string // how the volume was staged, "" where it was not: kubelet need not send its secrets again
}

// Attributes that kubelet adds.
const (
	kubeletPrefix  = "csi.storage.k8s.io/"
	PodName        = kubeletPrefix + "pod.name"
	PodNamespace   = kubeletPrefix + "pod.namespace"
	serviceAccount = kubeletPrefix + "serviceAccount.name"
	tokens         = kubeletPrefix + "serviceAccount.tokens"
	ephemeral      = kubeletPrefix + "ephemeral"
)

// frozen is the attribute of a volume whose files are not asked for again once they are read.
const frozen = "frozen"

// Inline tells whether the volume is one of the pod itself.
func (r Request) Inline() bool { return r.Attributes[ephemeral] == "true" }

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// check names the mistake in a value, "" for none.
type check func(value string) string

// option is an attribute that is a flag of hbmfs mount.
type option struct {
	flag   string
	check  check
	remote bool // it says nothing of a directory
}

func options() map[string]option {
	return map[string]option{
		"format":       {flag: "format", check: word},
		"dtype":        {flag: "dtype", check: word},
		"cacheSize":    {flag: "cache-size", check: bytes},
		"cacheMinFree": {flag: "cache-min-free", check: bytes},
		"cacheSegment": {flag: "cache-segment", check: bytes},
		"connections":  {flag: "connections", check: number(1, 4096), remote: true},
		"patience":     {flag: "patience", check: duration, remote: true},
		"readAhead":    {flag: "read-ahead", check: readAhead},
		"uid":          {flag: "uid", check: number(0, 1<<32-2)},
		"gid":          {flag: "gid", check: number(0, 1<<32-2)},
		"umask":        {flag: "umask", check: octal},
		"showViews":    {flag: "show-views", check: oneOf("true", "false")},
		frozen:         {flag: "frozen", check: oneOf("true", "false")},
		"keep":         {flag: "keep", check: number(1, 1<<20)},
		"drainRate":    {flag: "drain-rate", check: rate},
		"logLevel":     {flag: "log-level", check: oneOf("debug", "info", "warn", "error")},
	}
}

// others are the attributes that are no flags.
func others() []string {
	return []string{"source", "authentication", roleARN, provider, account, client, tenant, checkpoints, drain, kvDirectory, kvSize, kvMemory, keepFor}
}

// Parse makes a want of a request. Its errors are of gRPC, name the attribute or key that is wrong, and show no secret.
func Parse(r Request) (Want, error) {
	known := options()
	values := maps.Clone(r.Attributes)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		_, isOption := known[name]
		switch {
		case strings.HasPrefix(name, kubeletPrefix), strings.HasPrefix(name, "storage.kubernetes.io/"):
			delete(values, name)
		case !isOption && !slices.Contains(others(), name):
			names := append(slices.Collect(maps.Keys(known)), others()...)
			slices.Sort(names)
			return Want{}, invalid("volume attribute %q is not known: there are %s", name, strings.Join(names, ", "))
		}
	}
	w := Want{Spec: Spec{Source: values["source"]}}
	if err := w.settleKV(r, values); err != nil {
		return Want{}, err
	}
	if !w.KV {
		if err := cmp.Or(checkSource(w.Source), w.settleCheckpoints(r, values)); err != nil {
			return Want{}, err
		}
	}
	if err := cmp.Or(checkOwner(r, w.Spec), checkShare(r), mergeGroup(values, r)); err != nil {
		return Want{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		o, ok := known[name]
		if !ok {
			continue
		}
		if why := o.check(values[name]); why != "" {
			return Want{}, invalid("volume attribute %s=%q: %s", name, values[name], why)
		}
		if o.remote && w.Asked() == "" {
			return Want{}, invalid("volume attribute %s contradicts source: %s is a directory, which is asked nothing", name, w.Source)
		}
		if (name == "showViews" || name == frozen) && values[name] == "false" {
			continue // as without it
		}
		if name == frozen && w.Directory() == "" {
			return Want{}, invalid("volume attribute %s contradicts source: %s is no directory", name, w.Source)
		}
		w.Flags = append(w.Flags, "--"+o.flag+"="+values[name])
	}
	return w, w.authenticate(r, values)
}

// checkOwner refuses other owners of a directory's files in an inline volume. A user who may start a pod could read files
// that the node keeps from him. Administrators make persistent volumes, and a store checks credentials by itself.
func checkOwner(r Request, s Spec) error {
	if !r.Inline() || s.Directory() == "" {
		return nil
	}
	if r.Attributes[frozen] == "true" { // nobody could take a pod's right to read away
		return invalid("volume attribute %s is not for an inline volume: use a persistent one", frozen)
	}
	for _, name := range []string{"uid", "gid"} {
		if _, ok := r.Attributes[name]; ok {
			return invalid("volume attribute %s is not for an inline volume of a directory, whose files keep their owners: use fsGroup, or a persistent volume", name)
		}
	}
	return nil
}

// mostConnections is how many requests at once an inline volume may have under way, each with its buffers in the host's memory.
const mostConnections = 256

// checkShare refuses bounds of the cache in an inline volume, since all pods of the node share the cache. With a small
// one, or one that leaves the whole disk free, the daemon would remove the segments of others.
func checkShare(r Request) error {
	if !r.Inline() {
		return nil
	}
	for _, name := range []string{"cacheSize", "cacheMinFree"} {
		if _, ok := r.Attributes[name]; ok {
			return invalid("volume attribute %s is not for an inline volume, since all volumes of the node share the cache: use a persistent volume, or cacheMinFree of the chart", name)
		}
	}
	if n, err := strconv.ParseUint(r.Attributes["connections"], 10, 64); err == nil && n > mostConnections {
		return invalid("volume attribute connections=%d is not for an inline volume, which may have %d: use a persistent volume", n, mostConnections)
	}
	return nil
}

// mergeGroup makes the group that the pod wants (fsGroup) the gid of a dataset's files.
func mergeGroup(values map[string]string, r Request) error {
	group := r.MountGroup
	if group == "" || r.Written() {
		return nil
	}
	if why := number(0, 1<<32-2)(group); why != "" {
		return invalid("the volume mount group %q: %s", group, why)
	}
	if gid, ok := values["gid"]; ok && gid != group {
		return invalid("volume attribute gid=%s contradicts the pod's fsGroup %s: leave one of them out", gid, group)
	}
	values["gid"] = group
	return nil
}

// maxSource is how long a source may be, as Linux has it of a path (PATH_MAX): it is an argument of a daemon.
const maxSource = 4096

func checkSource(source string) error {
	want := "want an absolute directory of the node, " + address.Forms("or")
	if source == "" {
		return invalid("volume attribute source is missing: %s", want)
	}
	if !filepath.IsAbs(source) {
		return checkAddress("source", source, want)
	}
	return checkDirectory("source", source, want)
}

// checkDirectory refuses values that are no directory's path, or not the shortest.
func checkDirectory(attribute, dir, want string) error {
	if err := checkText(attribute, dir, want); err != nil {
		return err
	}
	if filepath.Clean(dir) != strings.TrimSuffix(dir, "/") && dir != "/" {
		return invalid("volume attribute %s=%q: write it without ., .. and double slashes", attribute, dir)
	}
	return nil
}

// checkText refuses values that are neither a path nor an address.
func checkText(attribute, text, want string) error {
	if len(text) > maxSource {
		return invalid("volume attribute %s has %d bytes, and may have %d", attribute, len(text), maxSource)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return invalid("volume attribute %s has a control character in it: %s", attribute, want)
	}
	return nil
}

// checkAddress refuses values that are no address of a source, or of another attribute.
func checkAddress(attribute, source, want string) error {
	if err := checkText(attribute, source, want); err != nil {
		return err
	}
	u, err := url.Parse(source)
	if err != nil { // whose text would show a possible password
		return invalid("volume attribute %s is no address: %s", attribute, want)
	}
	scheme := address.Of(source)
	switch {
	case u.Host == "" || scheme.Names == nil:
		return invalid("volume attribute %s=%q: %s", attribute, u.Redacted(), want)
	case u.User != nil && !strings.HasPrefix(u.Scheme, "abfs"):
		return invalid("volume attribute %s has credentials in it, where everybody sees them: put them into a secret", attribute)
	case u.User != nil && !regexp.MustCompile(`^[a-z0-9$-]{3,63}$`).MatchString(u.User.String()): // it could be a secret
		return invalid("volume attribute %s has something before @ that is no container: want abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX", attribute)
	case scheme.Options == nil && u.RawQuery != "":
		return invalid("volume attribute %s has a query, which may sign the address and would be seen by everybody: leave it out", attribute)
	case strings.Contains(source, "#"):
		return invalid("volume attribute %s has a # in it, which ends an address: write it as %%23", attribute)
	}
	return checkQuery(attribute, u.RawQuery, scheme.Options)
}

// checkQuery refuses options of an address that hbmfs would not take: with one that gets lost, another server is asked.
func checkQuery(attribute, text string, known []string) error {
	query, err := url.ParseQuery(text)
	if err != nil {
		return invalid("volume attribute %s has a query that cannot be read (%v): want KEY=VALUE&KEY=VALUE", attribute, err)
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		switch values := query[key]; {
		case key == "profile", key == "anonymous":
			return invalid("volume attribute %s: use the attribute authentication, and not profile or anonymous in the address", attribute)
		case !slices.Contains(known, key):
			return invalid("volume attribute %s: option %q is not known: there are %s", attribute, key, strings.Join(known, ", "))
		case len(values) > 1:
			return invalid("volume attribute %s: option %s is given twice", attribute, key)
		case values[0] == "" && key != "path_style":
			return invalid("volume attribute %s: option %s has no value", attribute, key)
		}
	}
	return nil
}

// authenticate settles the credentials by which the source is asked.
func (w *Want) authenticate(r Request, values map[string]string) error {
	scheme := address.Of(w.Asked())
	roles := rolesOf(values)
	role, how := values[scheme.Role], cmp.Or(values["authentication"], "auto")
	if why := oneOf("auto", AuthAnonymous, AuthSecret, AuthPod)(how); why != "" {
		return invalid("volume attribute authentication=%q: %s", how, why)
	}
	if how == "auto" {
		switch {
		case len(roles) > 0:
			how = AuthPod
		case len(r.Secrets) > 0, r.StagedAuth == AuthSecret:
			how = AuthSecret
		default:
			how = AuthAnonymous
		}
	}
	switch {
	case w.Drain != "" && how == AuthAnonymous && values["authentication"] != AuthAnonymous:
		return invalid("volume attribute drain needs rights to write there: name a secret, or roleArn; or say authentication: anonymous")
	case w.KV && how != AuthAnonymous:
		return invalid("a secret is for sources and drains, and a KV volume has neither: leave it out")
	case w.Checkpoints && how != AuthAnonymous && w.Drain == "":
		return invalid("volume attributes authentication, roleArn and secrets are for the drain of a checkpoint volume, and this one has none: leave them out")
	case how != AuthAnonymous && scheme.Secrets == nil:
		return invalid("volume attributes authentication, roleArn and secrets are for %s sources, and source is %s: leave them out", address.WithSecrets(), w.Source)
	case len(roles) > 0 && (len(roles) > 1 || roles[0] != scheme.Role):
		return invalid("volume attribute %s is not for %s sources: leave it out", roles[len(roles)-1], scheme.Names[0])
	case how != AuthPod && role != "":
		return invalid("volume attribute %s contradicts authentication=%s: a role is taken with the pod's token", scheme.Role, how)
	case how == AuthPod && scheme.Role == "":
		return invalid("volume attribute authentication=pod is not for %s sources, which take no token of a pod: name a secret", scheme.Names[0])
	case how == AuthPod && role == "":
		return invalid("volume attribute authentication=pod needs %s: what the token of the pod's service account is exchanged for", scheme.Role)
	case values[account] != "" && values[provider] == "":
		return invalid("volume attribute %s needs %s", account, provider)
	case (values[tenant] == "") != (values[client] == ""):
		return invalid("volume attributes %s and %s need each other", client, tenant)
	case how != AuthSecret && len(r.Secrets) > 0:
		return invalid("volume attribute authentication=%s contradicts the secret that the volume names: leave one of them out", how)
	}
	w.Auth = how
	switch how {
	case AuthSecret:
		return w.useSecrets(r)
	case AuthPod:
		return w.useToken(r, scheme.Role, values)
	}
	return nil
}

// useSecrets makes a credentials file of a secret. Without one, the credentials of the staging are used.
func (w *Want) useSecrets(r Request) error {
	if len(r.Secrets) == 0 {
		if r.Staging || r.Inline() {
			return invalid("volume attribute authentication=secret needs a secret: name one in nodeStageSecretRef and nodePublishSecretRef")
		}
		return nil
	}
	scheme := address.Of(w.Asked())
	keys, text := scheme.Secrets, "[default]\n"
	for _, name := range slices.Sorted(maps.Keys(r.Secrets)) {
		if !slices.Contains(keys, name) {
			return invalid("secret key %q is not known: there are %s", name, strings.Join(keys, ", "))
		}
	}
	for i, name := range keys {
		value := strings.TrimSpace(r.Secrets[name])
		if value == "" {
			if i < 2 { // AWS_SESSION_TOKEN may be missing
				return invalid("secret key %s is missing", name)
			}
			continue
		}
		if scheme.CheckSecret != nil {
			if why := scheme.CheckSecret(value); why != "" {
				return invalid("secret key %s: %s", name, why)
			}
		}
		if scheme.SecretFile != "" {
			text = value + "\n"
			continue
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == '`' }) {
			return invalid("secret key %s has white space, a backquote or other characters in it that no key has", name)
		}
		text += strings.ToLower(name) + " = `" + value + "`\n" // in backquotes nothing in it means anything
	}
	owner := "volume " + r.ID
	if r.Inline() {
		owner = "namespace " + r.Attributes[PodNamespace]
	}
	w.Identity, w.Credentials = Identity(owner, text), []byte(text)
	return nil
}

func word(v string) string {
	if !regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`).MatchString(v) {
		return "want one word"
	}
	return ""
}

func bytes(v string) string {
	if _, err := size.Parse(v); err != nil {
		return "want a size such as 64MiB, 10G or 2TiB"
	}
	return ""
}

// readAhead is a size, or 0 for the kernel's own.
func readAhead(v string) string {
	const most = 1 << 30
	if n, err := size.Parse(v); v != "0" && (err != nil || n > most) {
		return "want a size of at most 1GiB, such as 4MiB, or 0"
	}
	return ""
}

func octal(v string) string {
	if n, err := strconv.ParseUint(v, 8, 16); err != nil || n > 0o777 {
		return "want an octal number up to 777"
	}
	return ""
}

func duration(v string) string {
	if d, err := time.ParseDuration(v); err != nil || d <= 0 {
		return "want a time such as 2m"
	}
	return ""
}

func number(least, most uint64) check {
	return func(v string) string {
		if n, err := strconv.ParseUint(v, 10, 64); err != nil || n < least || n > most || strconv.FormatUint(n, 10) != v {
			return fmt.Sprintf("want a number from %d to %d", least, most)
		}
		return ""
	}
}

func oneOf(values ...string) check {
	return func(v string) string {
		if !slices.Contains(values, v) {
			return "want one of " + strings.Join(values, ", ")
		}
		return ""
	}
}
