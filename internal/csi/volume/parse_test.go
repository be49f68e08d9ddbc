package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// attributes are a source and more, as names and values in turn.
func attributes(source string, more ...string) map[string]string {
	a := map[string]string{"source": source}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

func keys(id, secret string) map[string]string {
	return map[string]string{"AWS_ACCESS_KEY_ID": id, "AWS_SECRET_ACCESS_KEY": secret}
}

const someTokens = `{"sts.amazonaws.com":{"token":"the token","expirationTimestamp":"2026-01-01T00:00:00Z"}}`

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		r    Request
		want Spec
	}{
		"a directory": {Request{Attributes: attributes("/data/pile/")}, Spec{Source: "/data/pile/", Auth: AuthAnonymous}},
		"all options": {
			Request{Attributes: attributes("s3://b/p", "format", "mds", "dtype", "u16", "cacheSize", "2TiB", "cacheMinFree", "1GiB", "cacheSegment", "64MiB",
				"connections", "8", "patience", "90s", "readAhead", "0", "uid", "7", "gid", "8", "umask", "027", "showViews", "true", "logLevel", "debug"), MountGroup: "8"},
			Spec{Source: "s3://b/p", Auth: AuthAnonymous, Flags: []string{"--cache-min-free=1GiB", "--cache-segment=64MiB", "--cache-size=2TiB", "--connections=8", "--dtype=u16", "--format=mds",
				"--gid=8", "--log-level=debug", "--patience=90s", "--read-ahead=0", "--show-views=true", "--uid=7", "--umask=027"}},
		},
		"an inline owner":       {Request{Attributes: attributes("s3://b", "uid", "7", ephemeral, "true")}, Spec{Source: "s3://b", Auth: AuthAnonymous, Flags: []string{"--uid=7"}}},
		"an inline directory":   {Request{Attributes: attributes("/d", "umask", "027", ephemeral, "true"), MountGroup: "9"}, Spec{Source: "/d", Auth: AuthAnonymous, Flags: []string{"--gid=9", "--umask=027"}}},
		"what kubelet adds":     {Request{Attributes: attributes("https://h/p/", PodName, "p", PodNamespace, "n", tokens, someTokens)}, Spec{Source: "https://h/p/", Auth: AuthAnonymous}},
		"the pod's group":       {Request{Attributes: attributes("/d"), MountGroup: "2000"}, Spec{Source: "/d", Auth: AuthAnonymous, Flags: []string{"--gid=2000"}}},
		"the default said":      {Request{Attributes: attributes("/d", "showViews", "false", "frozen", "false", "authentication", "anonymous")}, Spec{Source: "/d", Auth: AuthAnonymous}},
		"a role before the pod": {Request{Attributes: attributes("s3://b", "roleArn", "arn:aws:iam::1:role/r"), Staging: true}, Spec{Source: "s3://b", Auth: AuthPod, Role: "arn:aws:iam::1:role/r"}},
		"staged with a secret":  {Request{Attributes: attributes("s3://b"), StagedAuth: AuthSecret}, Spec{Source: "s3://b", Auth: AuthSecret}},
	} {
		w, err := Parse(c.r)
		slices.Sort(c.want.Flags)
		slices.Sort(w.Flags)
		if err != nil || w.Key() != c.want.Key() {
			t.Errorf("%s: %+v, %v, want %+v", name, w.Spec, err, c.want)
		}
	}
}

func TestTokenOfTheHub(t *testing.T) {
	w, err := Parse(Request{Attributes: attributes("hf://org/name"), Secrets: map[string]string{"HF_TOKEN": "hf_x\n"}})
	if err != nil || w.Auth != AuthSecret || string(w.Credentials) != "hf_x\n" || strings.Contains(fmt.Sprintf("%+v", w.Spec), "hf_x") {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestCredentialsOfGoogle(t *testing.T) {
	const key = `{"type":"service_account","private_key":"hunter2"}`
	w, err := Parse(Request{Attributes: attributes("gs://bucket/data"), Secrets: map[string]string{"credentials.json": key}})
	if err != nil || w.Auth != AuthSecret || string(w.Credentials) != key+"\n" || strings.Contains(fmt.Sprintf("%+v", w.Spec), "hunter2") {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestPullSecrets(t *testing.T) {
	const file = `{"auths":{"ghcr.io":{"auth":"aHVudGVyMg=="}}}`
	const source = "oci://ghcr.io/org/model@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855?platform=linux/arm64"
	w, err := Parse(Request{Attributes: attributes(source), Secrets: map[string]string{".dockerconfigjson": file}})
	if err != nil || w.Auth != AuthSecret || string(w.Credentials) != file+"\n" || strings.Contains(fmt.Sprintf("%+v", w.Spec), "aHVud") || w.Source != source {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err := Parse(Request{Attributes: attributes("oci://ghcr.io/org/model:v1")}); err != nil || w.Address() != "oci://ghcr.io/org/model:v1?anonymous=true" {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestConnectionStringOfAzure(t *testing.T) {
	const text = "AccountName=account;AccountKey=aHVudGVyMg=="
	w, err := Parse(Request{Attributes: attributes("az://account/container"), Secrets: map[string]string{"AZURE_STORAGE_CONNECTION_STRING": text}})
	if err != nil || w.Auth != AuthSecret || string(w.Credentials) != text+"\n" || strings.Contains(fmt.Sprintf("%+v", w.Spec), "aHVudGVyMg") {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestParseRefuses(t *testing.T) {
	const appID = "00000000-0000-4000-8000-00000000000a"
	role, pool := "arn:aws:iam::1:role/r", "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
	for name, c := range map[string]struct {
		r     Request
		words string // all of them are in the message
	}{
		"no source":              {Request{Attributes: map[string]string{"format": "mds"}}, "source missing"},
		"relative":               {Request{Attributes: attributes("data")}, "source absolute"},
		"unclean":                {Request{Attributes: attributes("/data/../etc")}, "source .."},
		"double slash":           {Request{Attributes: attributes("/data//x")}, "source double"},
		"scheme":                 {Request{Attributes: attributes("ftp://b")}, "source s3://"},
		"no address":             {Request{Attributes: attributes("s3://b\x00")}, "source control"},
		"password":               {Request{Attributes: attributes("s3://key:hunter2@b")}, "source secret"},
		"signed":                 {Request{Attributes: attributes("https://h/p?sig=hunter2")}, "source query"},
		"profile":                {Request{Attributes: attributes("s3://b?profile=root")}, "source authentication"},
		"a semicolon":            {Request{Attributes: attributes("s3://b?endpoint=http://h;region=r")}, "source query"},
		"a semicolon, a profile": {Request{Attributes: attributes("s3://b?profile=root;region=r")}, "source query"},
		"a bad escape":           {Request{Attributes: attributes("s3://b?endpoint=http://h%zz")}, "source query"},
		"an unknown option":      {Request{Attributes: attributes("s3://b?endpiont=http://h")}, "source endpiont endpoint region path_style"},
		"an option twice":        {Request{Attributes: attributes("s3://b?endpoint=http://h&endpoint=http://i")}, "source endpoint twice"},
		"an option of nothing":   {Request{Attributes: attributes("s3://b?endpoint=")}, "source endpoint value"},
		"after a fragment":       {Request{Attributes: attributes("s3://b/p#x?endpoint=http://h")}, "source # %23"},
		"http, a fragment":       {Request{Attributes: attributes("https://h/p#x")}, "source # %23"},
		"endless":                {Request{Attributes: attributes("s3://b/" + strings.Repeat("x", 5000))}, "source bytes"},
		"unknown":                {Request{Attributes: attributes("/d", "cachesize", "1GiB")}, "cachesize cacheSize"},
		"size":                   {Request{Attributes: attributes("/d", "cacheSize", "1XB")}, "cacheSize 64MiB"},
		"more than a disk":       {Request{Attributes: attributes("/d", "cacheSize", "9999999999999999PiB")}, "cacheSize 64MiB"},
		"number":                 {Request{Attributes: attributes("s3://b", "connections", "0")}, "connections 4096"},
		"leading zero":           {Request{Attributes: attributes("/d", "uid", "007")}, "uid number"},
		"duration":               {Request{Attributes: attributes("s3://b", "patience", "-1s")}, "patience 2m"},
		"octal":                  {Request{Attributes: attributes("/d", "umask", "888")}, "umask octal"},
		"bool":                   {Request{Attributes: attributes("/d", "showViews", "yes")}, "showViews true"},
		"a flag in a value":      {Request{Attributes: attributes("/d", "format", "mds --uid=0")}, "format word"},
		"group":                  {Request{Attributes: attributes("/d"), MountGroup: "users"}, "group users"},
		"two groups":             {Request{Attributes: attributes("/d", "gid", "1"), MountGroup: "2"}, "gid fsGroup"},
		"inline, owner":          {Request{Attributes: attributes("/d", "uid", "1000", ephemeral, "true")}, "uid inline"},
		"inline, group":          {Request{Attributes: attributes("/d", "gid", "1000", ephemeral, "true")}, "gid inline"},
		"inline, frozen":         {Request{Attributes: attributes("/d", "frozen", "true", ephemeral, "true")}, "frozen inline persistent"},
		"frozen, address":        {Request{Attributes: attributes("s3://b", "frozen", "true")}, "frozen source"},
		"inline, cache":          {Request{Attributes: attributes("s3://b", "cacheSize", "1TiB", ephemeral, "true")}, "cacheSize inline persistent"},
		"inline, free":           {Request{Attributes: attributes("s3://b", "cacheMinFree", "1TiB", ephemeral, "true")}, "cacheMinFree inline persistent"},
		"inline, requests":       {Request{Attributes: attributes("s3://b", "connections", "257", ephemeral, "true")}, "connections inline 256"},
		"directory, requests":    {Request{Attributes: attributes("/d", "connections", "4")}, "connections source"},
		"directory, role":        {Request{Attributes: attributes("/d", "roleArn", role)}, "roleArn source"},
		"directory, secret":      {Request{Attributes: attributes("/d"), Secrets: keys("a", "hunter2")}, "secrets source"},
		"no such way":            {Request{Attributes: attributes("s3://b", "authentication", "node")}, "authentication pod"},
		"anonymous, secret":      {Request{Attributes: attributes("s3://b", "authentication", "anonymous"), Secrets: keys("a", "hunter2")}, "authentication secret"},
		"role and secret":        {Request{Attributes: attributes("s3://b", "roleArn", role), Secrets: keys("a", "hunter2")}, "authentication secret"},
		"pod, no role":           {Request{Attributes: attributes("s3://b", "authentication", "pod")}, "authentication roleArn"},
		"secret with a role":     {Request{Attributes: attributes("s3://b", "authentication", "secret", "roleArn", role), Secrets: keys("a", "hunter2")}, "roleArn authentication"},
		"role":                   {Request{Attributes: attributes("s3://b", "roleArn", "admin")}, "roleArn arn:"},
		"secret, none":           {Request{Attributes: attributes("s3://b", "authentication", "secret"), Staging: true}, "authentication nodeStageSecretRef"},
		"half a secret":          {Request{Attributes: attributes("s3://b"), Secrets: map[string]string{"AWS_SECRET_ACCESS_KEY": "hunter2"}}, "AWS_ACCESS_KEY_ID missing"},
		"another key":            {Request{Attributes: attributes("s3://b"), Secrets: map[string]string{"password": "hunter2"}}, "password AWS_ACCESS_KEY_ID"},
		"a line in a secret":     {Request{Attributes: attributes("s3://b"), Secrets: keys("a", "hunter2\ncredential_process = id")}, "AWS_SECRET_ACCESS_KEY white"},
		"gs, role of AWS":        {Request{Attributes: attributes("gs://bucket", "roleArn", role)}, "roleArn gs"},
		"s3, pool of Google":     {Request{Attributes: attributes("s3://b", provider, pool)}, "workloadIdentityProvider s3"},
		"both":                   {Request{Attributes: attributes("gs://bucket", "roleArn", role, provider, pool)}, "gs leave"},
		"no pool":                {Request{Attributes: attributes("gs://bucket", provider, "https://pool.test")}, "workloadIdentityProvider //iam.googleapis.com"},
		"an account, no pool":    {Request{Attributes: attributes("gs://bucket", account, "a@b.iam.gserviceaccount.com")}, "googleServiceAccount workloadIdentityProvider"},
		"no account":             {Request{Attributes: attributes("gs://bucket", provider, pool, account, "a@b.test/x:y?")}, "googleServiceAccount NAME@PROJECT"},
		"pod, no pool":           {Request{Attributes: attributes("gs://bucket", "authentication", "pod")}, "authentication workloadIdentityProvider"},
		"hub, pod":               {Request{Attributes: attributes("hf://org/name", "authentication", "pod")}, "authentication hf secret"},
		"tokens that are none":   {Request{Attributes: attributes("s3://b", "roleArn", role, tokens, "hunter2")}, "serviceAccount.tokens JSON"},
		"hub, options":           {Request{Attributes: attributes("hf://org/name?region=r")}, "region endpoint"},
		"hub, key of S3":         {Request{Attributes: attributes("hf://org/name"), Secrets: keys("a", "hunter2")}, "AWS_ACCESS_KEY_ID HF_TOKEN"},
		"hub, no token":          {Request{Attributes: attributes("hf://org/name"), Secrets: map[string]string{"HF_TOKEN": " "}}, "HF_TOKEN missing"},
		"hub, role":              {Request{Attributes: attributes("hf://org/name", "roleArn", role)}, "roleArn hf"},
		"gs, workload identity":  {Request{Attributes: attributes("gs://bucket"), Secrets: map[string]string{"credentials.json": `{"type":"external_account","credential_source":{"file":"/hunter2"}}`}}, "credentials.json service_account"},
		"gs, type twice":         {Request{Attributes: attributes("gs://bucket"), Secrets: map[string]string{"credentials.json": `{"type":"service_account","TYPE":"external_account","private_key":"hunter2"}`}}, "credentials.json service_account"},
		"oci, a helper":          {Request{Attributes: attributes("oci://r.io/m:v1"), Secrets: map[string]string{".dockerconfigjson": `{"auths":{"hunter2":{}},"credHelpers":{"r.io":"sh"}}`}}, ".dockerconfigjson programs of the node"},
		"oci, a store":           {Request{Attributes: attributes("oci://r.io/m:v1"), Secrets: map[string]string{".dockerconfigjson": `{"auths":{"hunter2":{}},"CREDSSTORE":"sh"}`}}, ".dockerconfigjson programs of the node"},
		"oci, no JSON":           {Request{Attributes: attributes("oci://r.io/m:v1"), Secrets: map[string]string{".dockerconfigjson": "hunter2"}}, ".dockerconfigjson auths"},
		"gs, no JSON":            {Request{Attributes: attributes("gs://bucket"), Secrets: map[string]string{"credentials.json": "hunter2"}}, "credentials.json service_account"},
		"gs, key of S3":          {Request{Attributes: attributes("gs://bucket"), Secrets: keys("a", "hunter2")}, "AWS_ACCESS_KEY_ID credentials.json"},
		"az, no string":          {Request{Attributes: attributes("az://account/c"), Secrets: map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "hunter2"}}, "AZURE_STORAGE_CONNECTION_STRING AccountKey SharedAccessSignature"},
		"az, two lines":          {Request{Attributes: attributes("az://account/c"), Secrets: map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=a\nhunter2"}}, "AZURE_STORAGE_CONNECTION_STRING white"},
		"az, key of S3":          {Request{Attributes: attributes("az://account/c"), Secrets: keys("a", "hunter2")}, "AWS_ACCESS_KEY_ID AZURE_STORAGE_CONNECTION_STRING"},
		"az, signed":             {Request{Attributes: attributes("az://account/c?sig=hunter2")}, "sig endpoint"},
		"az, a name":             {Request{Attributes: attributes("az://hunter2@account/c")}, "source secret"},
		"abfs, a secret":         {Request{Attributes: attributes("abfs://hunter2==@account.dfs.core.windows.net")}, "source abfss://CONTAINER@ACCOUNT"},
		"abfs, a password":       {Request{Attributes: attributes("abfss://data:hunter2@account.dfs.core.windows.net/p")}, "source abfss://CONTAINER@ACCOUNT"},
		"az, role of AWS":        {Request{Attributes: attributes("az://account/c", roleARN, role)}, "roleArn az"},
		"az, no tenant":          {Request{Attributes: attributes("az://account/c", client, appID)}, "azureClientId azureTenantId"},
		"az, no client":          {Request{Attributes: attributes("az://account/c", tenant, "contoso.com")}, "azureClientId azureTenantId"},
		"az, no such client":     {Request{Attributes: attributes("az://account/c", client, "reader", tenant, "contoso.com")}, "azureClientId client ID"},
		"az, no such tenant":     {Request{Attributes: attributes("az://account/c", client, appID, tenant, "../common")}, "azureTenantId tenant domain"},
		"az, account of Google":  {Request{Attributes: attributes("az://account/c", client, appID, tenant, "contoso.com", account, "a@b.iam.gserviceaccount.com")}, "googleServiceAccount workloadIdentityProvider"},
		"s3, account of Google":  {Request{Attributes: attributes("s3://b", roleARN, role, account, "a@b.iam.gserviceaccount.com")}, "googleServiceAccount workloadIdentityProvider"},
		"s3, client of Azure":    {Request{Attributes: attributes("s3://b", client, appID, tenant, "contoso.com")}, "azureClientId s3"},
		"hub, token in it":       {Request{Attributes: attributes("hf://hunter2@org/name")}, "source secret"},
		"backquote in a secret":  {Request{Attributes: attributes("s3://b"), Secrets: keys("a", "hunter2`")}, "AWS_SECRET_ACCESS_KEY backquote"},
	} {
		_, err := Parse(c.r)
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range strings.Fields(c.words) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", name, err, w)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %q shows a secret", name, err)
		}
	}
	for name, r := range map[string]Request{
		"no token":   {Attributes: attributes("s3://b", "roleArn", role, PodNamespace, "n", serviceAccount, "s")},
		"no account": {Attributes: attributes("s3://b", "roleArn", role, tokens, someTokens)},
	} {
		if _, err := Parse(r); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWhoShares says which requests get the same daemon.
func TestWhoShares(t *testing.T) {
	pod := func(namespace, account string) map[string]string {
		return attributes("s3://b", "roleArn", "arn:aws:iam::1:role/r", PodNamespace, namespace, serviceAccount, account, tokens, someTokens)
	}
	inline := func(namespace string) map[string]string {
		return attributes("s3://b", PodNamespace, namespace, ephemeral, "true")
	}
	for name, c := range map[string]struct {
		a, b Request
		same bool
	}{
		"one directory":             {Request{ID: "1", Attributes: attributes("/d")}, Request{ID: "2", Attributes: attributes("/d", ephemeral, "true")}, true},
		"another option":            {Request{Attributes: attributes("/d")}, Request{Attributes: attributes("/d", "umask", "0")}, false},
		"another group":             {Request{Attributes: attributes("/d")}, Request{Attributes: attributes("/d"), MountGroup: "1"}, false},
		"the group, either way":     {Request{Attributes: attributes("/d", "gid", "1")}, Request{Attributes: attributes("/d"), MountGroup: "1"}, true},
		"one volume and secret":     {Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, true},
		"two volumes, one secret":   {Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, Request{ID: "2", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, false},
		"a guessed key":             {Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "guess")}, false},
		"anonymous and secret":      {Request{ID: "1", Attributes: attributes("s3://b")}, Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, false},
		"inline, one namespace":     {Request{ID: "1", Attributes: inline("n"), Secrets: keys("a", "s")}, Request{ID: "2", Attributes: inline("n"), Secrets: keys("a", "s")}, true},
		"inline, two namespaces":    {Request{ID: "1", Attributes: inline("n"), Secrets: keys("a", "s")}, Request{ID: "2", Attributes: inline("m"), Secrets: keys("a", "s")}, false},
		"inline, anonymous":         {Request{ID: "1", Attributes: inline("n")}, Request{ID: "2", Attributes: inline("m")}, true},
		"one service account":       {Request{ID: "1", Attributes: pod("n", "s")}, Request{ID: "2", Attributes: pod("n", "s")}, true},
		"two service accounts":      {Request{ID: "1", Attributes: pod("n", "s")}, Request{ID: "1", Attributes: pod("n", "t")}, false},
		"accounts of one name":      {Request{ID: "1", Attributes: pod("n", "s")}, Request{ID: "1", Attributes: pod("m", "s")}, false},
		"parts that run together":   {Request{ID: "1", Attributes: pod("ab", "c")}, Request{ID: "1", Attributes: pod("a", "bc")}, false},
		"a secret's trailing space": {Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s\n")}, Request{ID: "1", Attributes: attributes("s3://b"), Secrets: keys("a", "s")}, true},
	} {
		a, errA := Parse(c.a)
		b, errB := Parse(c.b)
		if errA != nil || errB != nil || (a.Key() == b.Key()) != c.same {
			t.Errorf("%s: %v, %v, keys %s and %s, want the same: %v", name, errA, errB, a.Key(), b.Key(), c.same)
		}
		if strings.Contains(a.Key()+strings.Join(a.Flags, "")+a.Identity, "hunter2") {
			t.Errorf("%s: the spec shows a secret", name)
		}
	}
}

func TestMinFree(t *testing.T) {
	for value, want := range map[string]int64{"": 0, "3GiB": 3 << 30} {
		r := Request{Attributes: attributes("s3://b")}
		if value != "" {
			r.Attributes["cacheMinFree"] = value
		}
		if w, err := Parse(r); err != nil || w.MinFree() != want {
			t.Errorf("cacheMinFree %q: %d, %v, want %d", value, w.MinFree(), err, want)
		}
	}
}

func TestAddress(t *testing.T) {
	for _, c := range []struct{ source, auth, want string }{
		{"s3://b/p", AuthAnonymous, "s3://b/p?anonymous=true"},
		{"s3://b/p?endpoint=http://h:1", AuthAnonymous, "s3://b/p?endpoint=http://h:1&anonymous=true"},
		{"s3://b/p?endpoint=http://h:1;region=r", AuthAnonymous, "s3://b/p?endpoint=http://h:1;region=r&anonymous=true"}, // of an old record: hbmfs refuses it
		{"s3://b/p", AuthSecret, "s3://b/p"},
		{"hf://datasets/o/n?endpoint=http://h", AuthAnonymous, "hf://datasets/o/n?endpoint=http://h&anonymous=true"},
		{"hf://o/n@v1", AuthSecret, "hf://o/n@v1"},
		{"gs://b/p", AuthAnonymous, "gs://b/p?anonymous=true"},
		{"az://account/c/p", AuthAnonymous, "az://account/c/p?anonymous=true"},
		{"https://h/p/", AuthAnonymous, "https://h/p/"},
		{"/d", AuthAnonymous, "/d"},
	} {
		if got := (Spec{Source: c.source, Auth: c.auth}).Address(); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.source, c.auth, got, c.want)
		}
	}
}

// TestEveryOptionIsChecked has each option refuse what no option takes.
func TestEveryOptionIsChecked(t *testing.T) {
	for name := range maps.Keys(options()) {
		for _, value := range []string{"", " ", "x\ny", "--"} {
			if value == "--" && (name == "format" || name == "dtype") {
				continue // a word; the flag is written with =, and hbmfs refuses it
			}
			if _, err := Parse(Request{Attributes: attributes("s3://b", name, value)}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%q: %v", name, value, err)
			}
		}
	}
}

func TestReadAheadIsASize(t *testing.T) {
	for v, good := range map[string]bool{"0": true, "131072": true, "4MiB": true, "1.5M": true, "1GiB": true, "2GiB": false, "far": false, "": false, "-1": false, "0K": false} {
		if says := readAhead(v); (says == "") != good {
			t.Errorf("readAhead %q: %q", v, says)
		}
	}
}
